# syntax=docker/dockerfile:1
# One image for every command. The page and the wheel are built in stages of their own, so that the
# last one holds Python, the locked dependencies and nothing to build with. Give the base images by
# digest for a build that can be repeated to the byte.
ARG NODE_IMAGE=node:20-bookworm-slim
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${NODE_IMAGE} AS page
WORKDIR /build
COPY dashboard/package.json dashboard/package-lock.json dashboard/.npmrc ./dashboard/
RUN cd dashboard && npm ci --no-audit --no-fund
COPY dashboard ./dashboard
COPY src/gpufleet/dashboard ./src/gpufleet/dashboard
RUN cd dashboard && npm run build

FROM ${PYTHON_IMAGE} AS wheel
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 SOURCE_DATE_EPOCH=0
WORKDIR /build
COPY requirements ./requirements
RUN python -m venv /opt/gpufleet && /opt/gpufleet/bin/pip install --require-hashes -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY --from=page /build/src/gpufleet/dashboard/static ./src/gpufleet/dashboard/static
RUN /opt/gpufleet/bin/pip install --no-deps --no-build-isolation . \
    && /opt/gpufleet/bin/pip uninstall -y hatchling editables pip \
    && find /opt/gpufleet -name __pycache__ -prune -exec rm -rf {} +

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="gpufleet" \
      org.opencontainers.image.description="Shows, accounts for and hands out the GPUs of a fleet." \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 gpufleet && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data gpufleet \
    && install -d -o 10001 -g 10001 /data
COPY --from=wheel /opt/gpufleet /opt/gpufleet
ENV PATH=/opt/gpufleet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 GPUFLEET_DATA=/data
USER 10001:10001
WORKDIR /data
EXPOSE 8080
ENTRYPOINT ["gpufleet"]
CMD ["serve"]
