"""`/`, `/assets/*` and `/favicon.ico`: the dashboard's static files.

The page reads its data from the public API like any other client, so its files are public even when
the API requires a login. Locations within the page are behind the `#` of the URL: the server knows
only these paths, and the page works under any prefix of a proxy. File names under `/assets` contain a hash of the
content, so browsers may cache them for a year; the page itself is revalidated on each visit.

The content security policy allows scripts, styles, fonts and data from this server only, and nothing inline.
"""

from pathlib import Path

from gpufleet.errors import NotFound
from gpufleet.server.http.answers import Raw
from gpufleet.server.http.routing import Route, get

STATIC = Path(__file__).parent / "static"
PUBLIC = frozenset({"/"})
PUBLIC_FOLDERS = ("/assets/",)

_MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".png": "image/png",
}
_SECURITY = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_NOT_BUILT = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>gpufleet</title>
<h1>The dashboard is not built</h1>
<p>The server works: see the <a href="docs">API</a>. To add the dashboard, install Node.js 20 or newer, run
<code>make dashboard</code> in the source tree and restart the server. The packages that
<code>make build</code> creates include it.</p>
</html>
"""


def dashboard_routes(folder: Path = STATIC) -> list[Route]:
    """Return the routes of the page built into `folder`, or of a page that says how to build it."""
    index = folder / "index.html"
    if index.is_file():
        page = _read(index, "no-cache")
        files = {
            path.name: _read(path, "public, max-age=31536000, immutable")
            for path in (folder / "assets").iterdir()
            if path.is_file()
        }
    else:
        headers = {**_SECURITY, "cache-control": "no-store"}
        page, files = Raw(_NOT_BUILT, "text/html", status=503, headers=headers), {}

    @get("/", scope="public", hidden=True)
    async def dashboard() -> Raw:
        """Return the page."""
        return page

    @get("/assets/{name:str}", scope="public", hidden=True)
    async def asset(name: str) -> Raw:
        """Return a file that the page loads."""
        if name not in files:
            raise NotFound(f"the dashboard has no file {name[:64]!r}")
        return files[name]

    @get("/favicon.ico", scope="public", hidden=True)
    async def icon() -> Raw:
        """Return the icon for pages that name none, such as the API documentation."""
        found = next((file for name, file in files.items() if name.startswith("icon-")), None)
        return found or Raw(b"", "image/svg+xml", status=204)

    return [dashboard, asset, icon]


def _read(path: Path, cache_control: str) -> Raw:
    media_type = _MEDIA_TYPES.get(path.suffix, "application/octet-stream")
    return Raw(path.read_bytes(), media_type, headers={**_SECURITY, "cache-control": cache_control})
