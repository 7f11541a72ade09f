"""Download the official release.

This is the last resort: many test machines reach only package registries. Each program is checked against the
published SHA-256.
"""

import hashlib
import platform
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.cluster.errors import Unavailable

_SITE = "https://dl.k8s.io"
_TIMEOUT_S = 60
_MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def kubernetes(
    directory: Path,
    version: str,
    names: Sequence[str],
    progress: Callable[[str], None],
    site: str = _SITE,
) -> None:
    """Download the programs into `directory`."""
    machine = _MACHINES.get(platform.machine().lower(), platform.machine())
    for name in names:
        address = f"{site}/release/v{version}/bin/{platform.system().lower()}/{machine}/{name}"
        try:
            expected = _read(f"{address}.sha256").decode().split()[0]
            progress(f"downloading {address}")
            body = _read(address)
        except (OSError, urllib.error.URLError, IndexError) as error:
            raise Unavailable(f"can't download {address}: {error}") from error
        if hashlib.sha256(body).hexdigest() != expected:
            raise Unavailable(f"{address} does not match its checksum")
        (directory / name).write_bytes(body)
        (directory / name).chmod(0o755)


def _read(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=_TIMEOUT_S) as answer:
        body: bytes = answer.read()
    return body
