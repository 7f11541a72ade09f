"""The agent's own port: /metrics for Prometheus, /livez and /readyz for the kubelet.

aiohttp's bare server, since the Kubernetes client has aiohttp loaded already and three paths need no
framework. Alive means that looks at the GPUs come to an end, even if the driver is silent; when so many
driver calls hang that none may be tried any more, only a new process can help, and the kubelet makes one.
"""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from gpufleet.errors import OperationRefused

Probe = Callable[[], str]
"""Says what is wrong; empty if nothing is."""
MAX_CONNECTIONS = 64


@asynccontextmanager
async def serving(
    host: str, port: int, metrics: Callable[[], bytes], content_type: str, probes: dict[str, Probe]
) -> AsyncIterator[str]:
    """Serve within the block; the value is the URL. `probes` has the paths that answer 200 or 503."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return web.Response(status=405, headers={"Allow": "GET, HEAD"}, text="only GET is served here\n")
        if request.path == "/metrics":
            return web.Response(body=metrics(), headers={"Content-Type": content_type})
        if request.path in probes:
            problem = probes[request.path]()
            return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")
        paths = ", ".join(("/metrics", *probes))
        return web.Response(status=404, text=f"not served here; there are {paths}\n")

    listening = bind(host, port)
    runner = web.ServerRunner(web.Server(answer, access_log=None), handle_signals=False, shutdown_timeout=2.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listening, backlog=MAX_CONNECTIONS).start()
        address, number = listening.getsockname()[:2]
        yield f"http://[{address}]:{number}" if ":" in address else f"http://{address}:{number}"
    finally:
        await runner.cleanup()
        listening.close()


def bind(host: str, port: int) -> socket.socket:
    """A socket on the address; says what to do if it can't be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=MAX_CONNECTIONS)
    except OSError as error:
        raise OperationRefused(
            f"can't listen on {host} port {port}: {error.strerror}; choose another with --host and --port"
        ) from None
