"""The OpenAPI document: that it is one, that it tells of every call, and that nothing is found that breaks it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import aiohttp
import openapi_spec_validator
import pytest
from jsonschema_rs import ValidationError

from gateway.server.control.access import ApiToken
from gateway.server.control.problems import REASONS
from gateway.stores.sqlite import SqliteStore
from tests.server.control.contract import calls, conforms, described
from tests.server.rig import rule, running

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SECONDS = 240


def test_the_document_is_one() -> None:
    """By the judgement of OpenAPI's own schemas; and names are told apart."""
    openapi_spec_validator.validate(described())
    assert described()["openapi"].startswith("3.1.")
    ids = Counter(call.handler.__name__ for call in calls())
    assert set(ids.values()) == {1}, ids


async def test_every_route_has_its_operation() -> None:
    """What a whole gateway routes is what its document describes, no more and no less."""
    async with running() as rig:
        application = rig.gateway._control.application()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{rig.gateway.control_port}") as session:
            document = await (await session.get("/v1/openapi.json")).json()
    routed = {(r.method, r.resource.canonical) for r in application.router.routes() if r.resource}
    told = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert {one for one in routed if one[0] != "HEAD"} == told
    assert document == described()


def test_every_reason_is_some_calls() -> None:
    """Each reason is one that a call may give; those of paths and methods alone are nobody's."""
    given = {
        reason
        for operations in described()["paths"].values()
        for operation in operations.values()
        for status, answer in operation["responses"].items()
        if "application/problem+json" in answer.get("content", {})
        for reason in answer["content"]["application/problem+json"]["schema"]["allOf"][1]["properties"]["reason"][
            "enum"
        ]
    }
    assert given | {"method-not-allowed"} == REASONS.keys()


def test_the_contract_can_be_broken() -> None:
    """An answer that leaves a member out, has another type or an undescribed status or reason does not conform."""
    answer = {"key": "k", "token": 1, "floor": 1}
    path, kind = "/v1/fences/k/check", "application/json"
    conforms("POST", path, 200, kind, answer)
    for bad in ({"key": "k", "token": 1}, {**answer, "floor": 1.5}, {**answer, "floor": "1"}):
        with pytest.raises(ValidationError):
            conforms("POST", path, 200, kind, bad)
    with pytest.raises(KeyError):
        conforms("POST", path, 202, kind, answer)
    problem = {"type": "about:blank", "title": "x", "status": 412, "detail": "x", "reason": "not-held"}
    with pytest.raises(ValidationError):
        conforms("POST", path, 412, "application/problem+json", problem)


async def test_nothing_is_found(tmp_path: Path) -> None:
    """Schemathesis, which makes requests that the document takes and others that it does not, finds no answer that is
    not promised there, no fault of the gateway, nothing taken that is wrong, and nothing refused that is right."""
    store, operator = SqliteStore(tmp_path / "gateway.db"), ApiToken("operators", operator=True)
    jobs = rule("renders/{job}/**", "{job}")
    async with running(store=store, data_directory=tmp_path, api_tokens=(operator,), rules=[jobs]) as rig:
        status, said = await schemathesis(rig.gateway.control_port, operator.secret, tmp_path)
        assert status == 0, said
        assert "internal-error" not in rig.logged


async def schemathesis(port: int, bearer: str, directory: Path) -> tuple[int | None, str]:
    """Its status and what it says. `SCHEMATHESIS` in the environment replaces how much it tries."""
    much = os.environ.get("SCHEMATHESIS", "--generation-deterministic --max-examples 8")
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("st"),
        *("--config-file", HERE / "schemathesis.toml", "run", f"http://127.0.0.1:{port}/v1/openapi.json"),
        *("--checks", "all", "--phases", "coverage,fuzzing,stateful", "--continue-on-failure", *much.split()),
        *("--header", f"Authorization: Bearer {bearer}", "--request-timeout", "5", "--no-color"),
        env={**os.environ, "PYTHONPATH": str(ROOT), "SCHEMATHESIS_HOOKS": "tests.server.control.schemathesis_hooks"},
        cwd=directory,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, said.decode()
