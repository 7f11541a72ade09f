# Images by role, one target each: `agent` for every GPU node, `scheduler` for the scheduler and the webhook, `server`
# (the default) for the API, the dashboard and the tools for AI assistants. Each contains Python and the dependencies
# of its role (the extras of pyproject.toml) and no build tools. None contains the demo: kubelite, its API server for
# tests, has no place in production. Use `uvx` or `make run` for the demo.
#
# For a reproducible image, pass the base images by digest and let BuildKit rewrite the timestamps
# (--output type=image,rewrite-timestamp=true).
ARG NODE_IMAGE=node:20-bookworm-slim
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# The hashes are checked here; the stages below install from these wheels only.
FROM ${PYTHON_IMAGE} AS dependencies
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /build
COPY requirements/runtime.txt ./requirements/
# Wheels only: the build requirements of a source distribution would be installed without a hash check.
RUN pip download --quiet --only-binary :all: --require-hashes --dest /wheels -r requirements/runtime.txt

FROM dependencies AS source
RUN pip install --quiet --no-index --find-links /wheels hatchling
COPY pyproject.toml README.md LICENSE ./
COPY src ./src

# The description of the API, from which the dashboard gets its types.
FROM source AS document
RUN pip install --quiet --no-compile --no-index --no-build-isolation --find-links /wheels ".[server]"
COPY dashboard/tools ./dashboard/tools
RUN python -m dashboard.tools.openapi openapi.json

FROM ${NODE_IMAGE} AS page
WORKDIR /build/dashboard
COPY dashboard/package.json dashboard/package-lock.json dashboard/.npmrc ./
RUN npm ci --no-audit --no-fund --ignore-scripts
COPY dashboard ./
COPY --from=document /build/openapi.json ./
RUN npm run types && npm run build

FROM source AS wheels
ARG SOURCE_DATE_EPOCH=315532800
COPY --from=page /build/src/gpufleet/server/dashboard/static ./src/gpufleet/server/dashboard/static
RUN pip wheel --no-index --no-deps --no-build-isolation --wheel-dir /wheels .
RUN python -m venv --without-pip /opt/gpufleet
ENV INSTALL="pip --python /opt/gpufleet/bin/python install --quiet --no-compile --no-index --find-links /wheels" \
    COMPILE="/opt/gpufleet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/gpufleet/lib"

# The bytecode is compiled here, because the root file system is read-only at run time; hash-based bytecode does not
# depend on file times, so the build stays reproducible.
FROM wheels AS agent-program
RUN $INSTALL "gpufleet[agent]" && $COMPILE

FROM wheels AS scheduler-program
RUN $INSTALL "gpufleet[scheduler]" && $COMPILE

FROM wheels AS server-program
RUN $INSTALL "gpufleet[server,mcp]" && $COMPILE

# Python without pip and other parts that nothing uses at run time. The base image ships the standard library without
# bytecode; compiling it here saves time and memory at every start.
FROM ${PYTHON_IMAGE} AS python
RUN stdlib="$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" && cd "$stdlib" \
    && rm -rf ensurepip idlelib lib2to3 tkinter turtledemo turtle.py site-packages/* \
       /usr/local/bin/pip* /usr/local/bin/idle* /usr/local/bin/2to3* /usr/local/bin/pydoc* /usr/local/bin/wheel \
    && python -m compileall -q --invalidation-mode unchecked-hash "$stdlib" \
    && rm -f /var/log/lastlog /var/log/faillog

# A copy, because files that a layer removes still take their space in the layers below.
FROM scratch AS base
COPY --from=python / /
LABEL org.opencontainers.image.title="gpufleet" \
      org.opencontainers.image.description="Shows, accounts for and allocates the GPUs of a fleet." \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/opt/gpufleet/bin:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin \
    LANG=C.UTF-8 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN groupadd --gid 10001 gpufleet \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin gpufleet \
    && rm -f /var/log/lastlog /var/log/faillog
WORKDIR /
USER 10001:10001
ENTRYPOINT ["gpufleet"]

FROM base AS agent
COPY --from=agent-program /opt/gpufleet /opt/gpufleet
EXPOSE 9401
CMD ["agent"]

FROM base AS scheduler
COPY --from=scheduler-program /opt/gpufleet /opt/gpufleet
CMD ["scheduler"]

FROM base AS server
USER 0:0
RUN install -d -o 10001 -g 10001 -m 0750 /data
USER 10001:10001
COPY --from=server-program /opt/gpufleet /opt/gpufleet
ENV GPUFLEET_DATA=/data
WORKDIR /data
EXPOSE 8080
CMD ["serve"]
