"""Static bearer tokens from a file of names, roles and hashes.

    # name    role      hash of the token  limit
    grafana   viewer    sha256:0a1b…
    ci        operator  sha256:9f8e…
    nlp       viewer    sha256:77c0…       namespaces=nlp,nlp-dev

A viewer's token may be limited to namespaces. A token is 32 random bytes, which can't be guessed, so one
SHA-256 is as safe as a slow hash. The file is checked once a second and read again when it changed. An invalid line is logged and ignored;
the other lines stay valid, so that removing a token always takes effect.
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from gpufleet.errors import SettingsError
from gpufleet.runtime.logs import get_logger
from gpufleet.server.auth.caller import Caller, Role

_log = get_logger("auth")
_LINE = re.compile(
    r"(?P<name>[\w.@:/-]{1,128})\s+(?P<role>viewer|operator)\s+sha256:(?P<hash>[0-9a-f]{64})"
    r"(?:\s+namespaces=(?P<namespaces>[^\s,=]{1,253}(?:,[^\s,=]{1,253})*))?"
)
_CHECK_EVERY = 1.0

Entry = tuple[bytes, Caller]


def new_token(name: str, role: Role, namespaces: Sequence[str] = ()) -> tuple[str, str]:
    """Return a new token, and the line of the tokens file that admits it."""
    if namespaces and role == "operator":
        raise SettingsError("an operator's token can't be limited to namespaces; a viewer's can")
    token = "gpf_" + secrets.token_urlsafe(32)
    line = f"{name} {role} sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    if not _LINE.fullmatch(line):
        raise SettingsError(
            f"a token's name takes letters, digits and . @ : / - _; {name!r} has other characters"
        )
    if namespaces:
        line += f" namespaces={','.join(namespaces)}"
        if not _LINE.fullmatch(line):
            raise SettingsError("namespaces are names without spaces and `=`, separated by commas")
    return token, line


class TokenFile:
    """The tokens of a file, read again when the file changes."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._checked_at = clock()
        try:
            self._stamp = _stamp(path)
            self._entries, invalid = parse(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"setting auth.tokens_file: can't read {path}: {error}") from None
        if invalid:
            raise SettingsError(
                f"setting auth.tokens_file: {path} line {invalid[0]} is invalid; "
                "it takes NAME viewer|operator sha256:HASH, for a viewer also namespaces=A,B "
                "(gpufleet serve --new-token makes one)"
            )

    def caller(self, token: str) -> Caller | None:
        """Return the owner of `token`; None if the file does not have it."""
        self._refresh()
        presented = hashlib.sha256(token.encode()).digest()
        found = None
        for digest, caller in self._entries:  # no early exit: the time must not depend on the entry
            if hmac.compare_digest(digest, presented):
                found = caller
        return found

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._checked_at < _CHECK_EVERY:
            return
        self._checked_at = now
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._entries, invalid = parse(self._path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            if self._entries:
                _log.error("tokens_file_not_readable", path=str(self._path), error=str(error))
            self._entries, self._stamp = [], None
            return
        self._stamp = stamp
        _log.info("tokens_file_reloaded", tokens=len(self._entries), invalid_lines=invalid)


def parse(text: str) -> tuple[list[Entry], list[int]]:
    """Return the entries of a tokens file, and the numbers of its invalid lines."""
    entries: list[Entry] = []
    invalid: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        if match is None or (match["namespaces"] and match["role"] == "operator"):
            invalid.append(number)
            continue
        namespaces = frozenset(match["namespaces"].split(",")) if match["namespaces"] else None
        caller = Caller(match["name"], cast(Role, match["role"]), namespaces=namespaces)
        entries.append((bytes.fromhex(match["hash"]), caller))
    return entries, invalid


def _stamp(path: Path) -> tuple[int, int, int] | None:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino
