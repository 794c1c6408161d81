# The gateway with its embedded store. Mount your configuration over /etc/fencing-gateway/gateway.toml (the one
# inside holds the defaults: loopback alone) and a volume over /var/lib/fencing-gateway, which relative paths start at.

FROM python:3.13-slim AS build
WORKDIR /build
COPY requirements/build.lock requirements/run.lock requirements/
RUN python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/build.lock \
    && python -m venv /opt/fencing-gateway \
    && /opt/fencing-gateway/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes \
        -r requirements/run.lock
COPY pyproject.toml README.md LICENSE ./
COPY gateway gateway
RUN /opt/build/bin/pip wheel --no-cache-dir --disable-pip-version-check --no-deps --no-build-isolation \
        --wheel-dir /build/dist . \
    && /opt/fencing-gateway/bin/pip install --no-cache-dir --disable-pip-version-check --no-deps --no-index \
        /build/dist/*.whl

FROM python:3.13-slim
RUN useradd --system --uid 10001 --user-group --home-dir /var/lib/fencing-gateway --create-home \
        --shell /usr/sbin/nologin gateway
COPY --from=build /opt/fencing-gateway /opt/fencing-gateway
COPY config/gateway.toml /etc/fencing-gateway/gateway.toml
ENV PATH=/opt/fencing-gateway/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    FENCING_GATEWAY_CONFIG=/etc/fencing-gateway/gateway.toml
USER gateway
WORKDIR /var/lib/fencing-gateway
VOLUME /var/lib/fencing-gateway
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s --retries=3 CMD ["fencing-gateway", "healthcheck"]
ENTRYPOINT ["fencing-gateway"]
CMD ["serve"]
