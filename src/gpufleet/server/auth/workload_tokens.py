"""Tokens of workloads, which may only report the training numbers of that workload.

    gpw_<uid>.<signature>      both in base64url

The signature is an HMAC of the uid with the server's key, so the server stores no tokens. A token
ends with its workload, because uids are never reused. The key is in a file; replacing it revokes
all tokens. Servers of one database need the same key.
"""

import base64
import binascii
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from gpufleet.errors import SettingsError
from gpufleet.server.auth.caller import Caller

PREFIX = "gpw_"
_KEY_BYTES = 32
_MAX_UID_BYTES = 512


class WorkloadTokens:
    """Issues and verifies tokens with one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def issue(self, uid: str) -> str:
        """Return the token of a workload."""
        return f"{PREFIX}{_text(uid.encode())}.{_text(self._signature(uid))}"

    def caller(self, token: str) -> Caller | None:
        """Return the workload of a token; None if it is not a valid workload token."""
        head, _, signature = token.removeprefix(PREFIX).partition(".")
        if not token.startswith(PREFIX) or len(head) > _MAX_UID_BYTES:
            return None
        try:
            uid, given = _bytes(head).decode(), _bytes(signature)
        except (binascii.Error, ValueError):
            return None
        if not uid or not hmac.compare_digest(self._signature(uid), given):
            return None
        return Caller(f"workload {uid}", "viewer", login="workload", workload_uid=uid)

    def _signature(self, uid: str) -> bytes:
        return hmac.new(self._key, b"training of " + uid.encode(), hashlib.sha256).digest()


def read_key(path: Path, *, make: bool) -> bytes:
    """Return the key in `path`; with `make`, create the file if it does not exist."""
    try:
        if make and not path.exists():
            _create_key(path)
        key = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"setting auth.workload_key_file: can't read {path}: {error.strerror}") from None
    if len(key) < _KEY_BYTES:
        raise SettingsError(
            f"setting auth.workload_key_file: {path} must have at least {_KEY_BYTES} random bytes"
        )
    return key


def _create_key(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_hex(_KEY_BYTES).encode())
    try:
        os.link(temporary, path)  # atomic: of two servers the first one wins
    except FileExistsError:
        pass
    finally:
        temporary.unlink()


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
