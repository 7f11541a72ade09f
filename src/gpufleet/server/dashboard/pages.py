"""`/` and `/assets/*`: the dashboard, as static files that hold no data.

The page gets its data from the public API like any other client, so the files may be public while
the data is not. Places within the page are behind the `#` of the address: the server knows two
paths, and the page works under any prefix that a proxy gives it. Files under `/assets` carry a
hash of their content in their names and may be kept for a year; the page itself is asked for anew
each time, which costs a 304.

The content policy allows scripts, styles, fonts and data from this server alone, and nothing inline.
"""

from pathlib import Path
from typing import Any

from litestar import HttpMethod, Request, Response
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.types import ControllerRouterHandler

from gpufleet.server.dashboard.files import BuiltPage, StaticFile, read_build

STATIC = Path(__file__).parent / "static"
PUBLIC = frozenset({"/"})
PUBLIC_FOLDERS = ("/assets/",)

CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SAFE = {
    "content-security-policy": CONTENT_POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_A_YEAR = "public, max-age=31536000, immutable"
_NOT_BUILT = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>gpufleet</title>
<h1>The dashboard is not built</h1>
<p>The server works: see the <a href="docs">API</a>. To have the dashboard too, install Node.js 20 or
newer, run <code>make dashboard</code> in the source tree and start the server again. The packages that
<code>make build</code> makes have it inside.</p>
</html>
"""


def _get(path: str) -> HTTPRouteHandler:
    """What answers GET on `path`, and HEAD, which Litestar's own `get` leaves out."""
    return HTTPRouteHandler(path, http_method=[HttpMethod.GET, HttpMethod.HEAD], include_in_schema=False)


def dashboard_pages(folder: Path = STATIC) -> list[ControllerRouterHandler]:
    """The routes of the page that was built into `folder`, or of one that says how to build it."""
    built = read_build(folder)
    return [_not_built] if built is None else _pages(built)


def _pages(built: BuiltPage) -> list[ControllerRouterHandler]:
    @_get("/")
    async def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The page."""
        return _answer(request, built.index, "no-cache")

    @_get("/assets/{name:str}")
    async def asset(request: Request[Any, Any, Any]) -> Response[bytes]:
        """A file that the page loads."""
        name = str(request.path_params["name"])
        file = built.assets.get(name)
        if file is None:
            raise NotFoundException(f"the dashboard has no file {name[:64]!r}")
        return _answer(request, file, _A_YEAR)

    return [page, asset]


@_get("/")
async def _not_built() -> Response[bytes]:
    """How to get a page."""
    return Response(
        _NOT_BUILT,
        status_code=503,
        media_type="text/html",
        headers={**_SAFE, "cache-control": "no-store"},
    )


def _answer(request: Request[Any, Any, Any], file: StaticFile, keep: str) -> Response[bytes]:
    headers = {**_SAFE, "cache-control": keep, "etag": file.etag, "vary": "accept-encoding"}
    if file.etag in request.headers.get("if-none-match", ""):
        return Response(b"", status_code=304, headers=headers)
    if file.packed is not None and "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
        return Response(file.packed, media_type=file.media_type, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)
