"""The files of the built page, read once when the server starts: they are few and small.

Each is kept as it is and compressed, so that a request costs a look into a dictionary. Nothing is
read from disk by a name that a caller sent.
"""

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".png": "image/png",
}
_PACKED_ALREADY = frozenset({".woff2", ".png"})


@dataclass(frozen=True)
class StaticFile:
    """One file of the page."""

    body: bytes
    packed: bytes | None
    """Compressed with gzip; None where that gains nothing."""
    media_type: str
    etag: str

    @classmethod
    def read(cls, path: Path) -> "StaticFile":
        """The file at `path`."""
        body = path.read_bytes()
        packed = None if path.suffix in _PACKED_ALREADY else gzip.compress(body, 9, mtime=0)
        tag = hashlib.blake2b(body, digest_size=12).hexdigest()
        return cls(body, packed, _TYPES.get(path.suffix, "application/octet-stream"), f'"{tag}"')


@dataclass(frozen=True)
class BuiltPage:
    """The page that starts everything, and the files that it loads by their hashed names."""

    index: StaticFile
    assets: dict[str, StaticFile]


def read_build(folder: Path) -> BuiltPage | None:
    """What `make dashboard` left in `folder`; None if it was not run."""
    index = folder / "index.html"
    if not index.is_file():
        return None
    assets = {path.name: StaticFile.read(path) for path in (folder / "assets").iterdir() if path.is_file()}
    return BuiltPage(StaticFile.read(index), assets)
