"""Static bearer tokens: a file of names, roles and hashes.

    # name    role      hash of the token
    grafana   viewer    sha256:0a1b…
    ci        operator  sha256:9f8e…

A token is 32 random bytes, which no dictionary holds; so one SHA-256 is as good as a slow hash,
and a login costs the same whether the token is right or wrong. The file is looked at once a second
and read again when it changed. A line that can't be read admits nobody and is logged; the lines
around it stay valid, so that taking a token out always takes effect.
"""

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from gpufleet.errors import SettingsError
from gpufleet.runtime.logs import get_logger
from gpufleet.server.auth.caller import Caller, Role

_log = get_logger("auth")
_LINE = re.compile(r"(?P<name>[\w.@:/-]{1,128})\s+(?P<role>viewer|operator)\s+sha256:(?P<hash>[0-9a-f]{64})")
_LOOK_EVERY = 1.0

Entry = tuple[bytes, Caller]


def new_token(name: str, role: Role) -> tuple[str, str]:
    """A new token, and the line of the tokens file that admits it."""
    token = "gpf_" + secrets.token_urlsafe(32)
    line = f"{name} {role} sha256:{hashlib.sha256(token.encode()).hexdigest()}"
    if not _LINE.fullmatch(line):
        raise SettingsError(f"a token's name takes letters, digits and . @ : / - _; {name!r} has others")
    return token, line


class TokenFile:
    """The tokens of a file, as fresh as the file."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._looked_at = clock()
        try:
            self._stamp = _stamp(path)
            self._entries, wrong = parse(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"setting auth.tokens_file: can't read {path}: {error}") from None
        if wrong:
            raise SettingsError(
                f"setting auth.tokens_file: {path} line {wrong[0]} is wrong; "
                "it takes NAME viewer|operator sha256:HASH (gpufleet serve --new-token makes one)"
            )

    def caller(self, token: str) -> Caller | None:
        """Whom `token` belongs to."""
        self._refresh()
        presented = hashlib.sha256(token.encode()).digest()
        found = None
        for digest, caller in self._entries:  # to the end, so that time tells nothing
            if hmac.compare_digest(digest, presented):
                found = caller
        return found

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = now
        try:
            stamp = _stamp(self._path)
            if stamp == self._stamp:
                return
            self._entries, wrong = parse(self._path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            if self._entries:
                _log.error("tokens file can't be read; nobody can log in with its tokens", error=str(error))
            self._entries, self._stamp = [], None
            return
        self._stamp = stamp
        _log.info("tokens file read again", tokens=len(self._entries), wrong_lines=wrong)


def parse(text: str) -> tuple[list[Entry], list[int]]:
    """The entries of a tokens file, and the numbers of the lines that can't be read."""
    entries: list[Entry] = []
    wrong: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        if match := _LINE.fullmatch(content):
            entries.append((bytes.fromhex(match["hash"]), Caller(match["name"], cast(Role, match["role"]))))
        else:
            wrong.append(number)
    return entries, wrong


def _stamp(path: Path) -> tuple[int, int, int] | None:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino
