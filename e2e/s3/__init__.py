"""A real S3-compatible store: the Versity gateway, built once from its Go module into the cache of the other programs.

It checks signatures as AWS does and keeps objects as files in a directory.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.waiting import block_until

from e2e.cluster import build
from e2e.cluster.cache import Progress, cache, has_programs, stored

_HERE = Path(__file__).parent
_PROGRAM = "versitygw"
ACCESS_KEY, SECRET_KEY = "gpufleet", "s3cr3t/+ %"


def find(progress: Progress) -> Path:
    """Return the program. Raise `Unavailable` with a one-line reason if it can't be built."""
    directory = _from_cache() or stored(
        _PROGRAM, _name(), _from_cache, lambda target: _build(target, progress), progress
    )
    return directory / _PROGRAM


@contextmanager
def serving(program: Path, port: int, folder: Path) -> Iterator[str]:
    """Run the store over `folder`, whose directories are buckets; yield its address."""
    address = f"http://127.0.0.1:{port}"
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET_KEY}
    command = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "posix", "--nometa", str(folder)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            block_until(lambda: _answers(address, process))
            yield address
        finally:
            process.kill()


def _answers(address: str, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "the store has ended"
    try:
        return httpx.get(address).status_code < 500
    except httpx.TransportError:
        return False


def _name() -> str:
    return f"{_PROGRAM}-{hashlib.sha256((_HERE / 'go.sum').read_bytes()).hexdigest()[:8]}"


def _from_cache() -> Path | None:
    directory = cache() / _name()
    return directory if has_programs(directory, (_PROGRAM,)) else None


def _build(target: Path, progress: Progress) -> None:
    target.mkdir()
    build.module(target, "versitygw", _HERE, ["github.com/versity/versitygw/cmd/versitygw"], progress)
