"""Run one listener in a process of its own, so that its memory can be measured.

    python -m tests.attacks.target api|listener

The API serves the tools for AI assistants too.

It prints its port, and runs until its standard input ends. Time limits are a fraction of the defaults.
"""

import asyncio
import hashlib
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from aiohttp import web
from tests.server.conftest import sample_routes

from gpufleet.runtime.http_listener import HttpListener
from gpufleet.runtime.listening import bind
from gpufleet.runtime.logs import configure_logs
from gpufleet.runtime.stalled_connections import StallLimits
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.tokens import TokenFile
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.answers import Answer, Raw
from gpufleet.server.http.middleware import Limits
from gpufleet.server.http.routing import Route, get, post
from gpufleet.server.http.server import Server

STALLS = StallLimits(head=1.0, write=2.0)
BODY_SECONDS = 2.0
MAX_BODY = 1024 * 1024
TOKENS = WorkloadTokens(b"k" * 32)
VIEWERS = tuple(f"gpf_viewer-{number}" for number in range(2))
LARGE = b"x" * (8 << 20)


def routes() -> list[Route]:
    @post("/api/workloads/{uid:str}/trainingPerformance")
    async def report(uid: str, body: list[int]) -> Answer[int]:
        """Count numbers."""
        return Answer(len(body))

    @get("/api/clusters/overview", scope="public")
    async def overview() -> dict[str, int]:
        """Return what a tool reads."""
        return {"totalNodes": 1}

    @get("/docs/large")
    async def large() -> Raw:
        """Return a large response."""
        return Raw(LARGE, "application/octet-stream")

    return [*sample_routes(), report, overview, large]


async def serve_api(stack: AsyncExitStack) -> int:
    lifecycle, started = Lifecycle(), asyncio.Event()
    file = Path(stack.enter_context(TemporaryDirectory())) / "tokens"
    hashes = [hashlib.sha256(token.encode()).hexdigest() for token in VIEWERS]
    file.write_text(
        "".join(f"{token} viewer sha256:{digest}\n" for token, digest in zip(VIEWERS, hashes, strict=True))
    )
    api = Api(
        routes=routes(),
        lifecycle=lifecycle,
        gate=BearerGate(TokenFile(file), workloads=TOKENS),
        mcp=True,
        limits=Limits(max_body_bytes=MAX_BODY, request_timeout=BODY_SECONDS),
    )
    server = Server(create_app(api), lifecycle, 0, stalls=STALLS)
    server.on_started = started.set
    listening = stack.enter_context(bind("127.0.0.1", 0))
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    stack.callback(serving.cancel)
    await started.wait()
    return int(listening.getsockname()[1])


async def serve_listener(stack: AsyncExitStack) -> int:
    async def echo(request: web.Request) -> web.Response:
        return web.Response(text=f"{len(await request.read())} {sorted(request.headers)}")

    listener = HttpListener(
        metrics=lambda: LARGE,
        posts={"/echo": echo},
        max_body=MAX_BODY,
        stalls=STALLS,
        body_timeout=BODY_SECONDS,
    )
    listening = bind("127.0.0.1", 0)
    await stack.enter_async_context(listener.serving(listening))
    return int(listening.getsockname()[1])


async def main(kind: str) -> None:
    configure_logs("critical", "json")
    async with AsyncExitStack() as stack:
        print(await (serve_api if kind == "api" else serve_listener)(stack), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
