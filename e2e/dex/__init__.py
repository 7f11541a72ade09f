"""A real OpenID Connect provider: dex, built once from its Go module into the cache of the other programs."""

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
from tests.waiting import block_until

from e2e.cluster import build
from e2e.cluster.cache import Progress, cache, has_programs, stored

_HERE = Path(__file__).parent
_PROGRAM = "provider"
CLIENT, SECRET = "gpufleet", "s3cr3t/+ %"
USER, PASSWORD = "alice@example.com", "password"


def find(progress: Progress) -> Path:
    """Return the program. Raise `Unavailable` with a one-line reason if it can't be built."""
    directory = _from_cache() or stored(
        "dex", _name(), _from_cache, lambda target: _build(target, progress), progress
    )
    return directory / _PROGRAM


@contextmanager
def serving(program: Path, port: int, redirect: str) -> Iterator[str]:
    """Run dex with new keys and yield its issuer."""
    issuer = f"http://127.0.0.1:{port}/dex"
    with subprocess.Popen([program, f"127.0.0.1:{port}", redirect], stderr=subprocess.DEVNULL) as process:
        try:
            block_until(lambda: _answers(f"{issuer}/.well-known/openid-configuration"))
            yield issuer
        finally:
            process.kill()


def id_token(issuer: str, client: str = CLIENT, secret: str = SECRET) -> str:
    """Return a token of the user, by the password grant."""
    form = {"grant_type": "password", "scope": "openid email groups", "username": USER, "password": PASSWORD}
    answer = httpx.post(f"{issuer}/token", data=form, auth=(quote(client), quote(secret, safe="")))
    assert answer.status_code == 200, answer.text
    token: str = answer.json()["id_token"]
    return token


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


def _name() -> str:
    sources = (_HERE / "go.sum", _HERE / "provider" / "main.go")
    return f"dex-{hashlib.sha256(b''.join(each.read_bytes() for each in sources)).hexdigest()[:8]}"


def _from_cache() -> Path | None:
    directory = cache() / _name()
    return directory if has_programs(directory, (_PROGRAM,)) else None


def _build(target: Path, progress: Progress) -> None:
    target.mkdir()
    build.module(target, "dex", _HERE, ["./provider"], progress)
