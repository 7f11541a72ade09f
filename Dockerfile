# One image for `gpufleet serve`, `agent`, `scheduler` and `webhook`. It does not contain the demo: kubelite, its
# API server for tests, has no place in production. Use `uvx` or `make run` for the demo.
#
# The page and the program are built in their own stages, so the final stage holds Python and the locked dependencies
# but no build tools. For a reproducible image, pass the base images by digest and let BuildKit rewrite the timestamps
# (--output type=image,rewrite-timestamp=true).
ARG NODE_IMAGE=node:20-bookworm-slim
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${NODE_IMAGE} AS page
WORKDIR /build/dashboard
COPY dashboard/package.json dashboard/package-lock.json dashboard/.npmrc ./
RUN npm ci --no-audit --no-fund --ignore-scripts
COPY dashboard ./
RUN npm run build

FROM ${PYTHON_IMAGE} AS program
ARG SOURCE_DATE_EPOCH=315532800
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore PYTHONDONTWRITEBYTECODE=1
WORKDIR /build
COPY requirements/runtime.txt ./requirements/
# Wheels only: the build requirements of a source distribution would be installed without a hash check.
RUN python -m venv /opt/gpufleet \
    && /opt/gpufleet/bin/pip install --no-compile --only-binary :all: --require-hashes -r requirements/runtime.txt
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
COPY --from=page /build/src/gpufleet/server/dashboard/static ./src/gpufleet/server/dashboard/static
# Remove the build tools and what only kubelite needs. Compile the bytecode here, because the root file system is
# read-only at run time; hash-based bytecode does not depend on file times, so the build stays reproducible.
RUN /opt/gpufleet/bin/pip install --no-compile --no-deps --no-build-isolation . \
    && /opt/gpufleet/bin/pip uninstall --yes \
       editables annotated-doc annotated-types colorama common-expression-language hatchling jsonschema-rs \
       markdown-it-py mdurl packaging pathspec pluggy prompt-toolkit pydantic pydantic-core pygments rich \
       shellingham tomlkit trove-classifiers typer typing-inspection wcwidth setuptools pip \
    && /opt/gpufleet/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/gpufleet/lib

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="gpufleet" \
      org.opencontainers.image.description="Shows, accounts for and allocates the GPUs of a fleet." \
      org.opencontainers.image.licenses="Apache-2.0"
ARG SOURCE_DATE_EPOCH=315532800
# Remove pip: nothing is installed at run time. The base image ships the standard library without bytecode; compiling
# it here saves time and memory at every start.
RUN python -m pip uninstall --yes --quiet --root-user-action=ignore setuptools wheel pip \
    && python -m compileall -q --invalidation-mode unchecked-hash -x 'ensurepip|idlelib|lib2to3|site-packages|tkinter|turtledemo' \
       "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')" \
    && groupadd --gid 10001 gpufleet \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /data --shell /usr/sbin/nologin gpufleet \
    && install -d -o 10001 -g 10001 -m 0750 /data \
    && rm -f /var/log/lastlog /var/log/faillog
COPY --from=program /opt/gpufleet /opt/gpufleet
ENV PATH=/opt/gpufleet/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 GPUFLEET_DATA=/data
USER 10001:10001
WORKDIR /data
EXPOSE 8080
ENTRYPOINT ["gpufleet"]
CMD ["serve"]
