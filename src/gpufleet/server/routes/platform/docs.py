"""`/openapi.json`, and the page at `/docs` that shows it.

The page is three small files that load nothing from other hosts, which its content security policy
enforces. The usual viewers are megabytes of script from a CDN.
"""

from importlib.resources import files

from gpufleet.server.http.answers import Raw
from gpufleet.server.http.routing import Route, get

_SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}


def docs_routes(document: bytes) -> list[Route]:
    """Return the routes of the documentation; `document` is the OpenAPI description."""
    return [
        _static("/openapi.json", Raw(document, "application/json")),
        _static("/docs", _file("docs.html", "text/html")),
        _static("/docs/docs.css", _file("docs.css", "text/css")),
        _static("/docs/docs.js", _file("docs.js", "text/javascript")),
    ]


def _static(path: str, content: Raw) -> Route:
    @get(path, scope="public", hidden=True)
    async def static() -> Raw:
        """Return a file."""
        return content

    return static


def _file(name: str, media_type: str) -> Raw:
    body = (files("gpufleet.server.routes.platform") / "static" / name).read_bytes()
    return Raw(body, media_type, headers=_SECURITY)
