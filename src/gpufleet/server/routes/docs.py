"""`/openapi.json` and the page at `/docs` that shows it.

The page is three small files of our own: it loads nothing from other hosts, and its content policy
keeps it so. By hand, because the usual viewers are megabytes of script from a CDN.
"""

from importlib.resources import files

from gpufleet.server.http.answers import Raw
from gpufleet.server.http.request_context import Header
from gpufleet.server.http.routing import Route, get

CONTENT_POLICY: Header = (
    b"content-security-policy",
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
)
_REFERRER: Header = (b"referrer-policy", b"no-referrer")
_KINDS = {"html": b"text/html; charset=utf-8", "css": b"text/css; charset=utf-8", "js": b"text/javascript"}


def pages(document: bytes) -> list[Route]:
    """The routes of the documentation."""

    @get("/openapi.json", hidden=True)
    async def openapi_json() -> Raw:
        """This description."""
        return Raw(document, b"application/json")

    return [
        openapi_json,
        _page("/docs", "docs.html"),
        _page("/docs/docs.css", "docs.css"),
        _page("/docs/docs.js", "docs.js"),
    ]


def _page(path: str, name: str) -> Route:
    raw = Raw(
        (files("gpufleet.server.routes") / "static" / name).read_bytes(),
        _KINDS[name.rpartition(".")[2]],
        headers=(CONTENT_POLICY, _REFERRER),
    )

    @get(path, hidden=True)
    async def page() -> Raw:
        """A file of the documentation page."""
        return raw

    return page
