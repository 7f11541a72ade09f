"""Sessions of signed-in people, and sign-ins in progress, in signed cookies.

The server stores nothing: a session has the name of the person and the groups that matter here, and ends after
`oidc.session_lifetime`. Permissions follow from the groups at each request, so a change of the settings takes
effect at once; a change at the provider takes effect at the next sign-in.

On https the names of the cookies begin with `__Host-`: browsers then refuse them from other hosts and without
`Secure`. Only on this machine, over http, they go without.
"""

import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jwt
from starlette.exceptions import HTTPException
from starlette.requests import cookie_parser

from gpufleet.errors import SettingsError
from gpufleet.runtime.settings import OidcSettings
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.oidc.tokens import Identity
from gpufleet.server.auth.origins import Origins
from gpufleet.server.auth.permissions import GroupPermissions, LoginRefused

SIGN_IN_SECONDS = 600
_SESSION, SIGN_IN = "gpufleet-session", "gpufleet-sign-in"
_KEY_BYTES = 32
_MAX_COOKIE = 4000
"""Browsers drop larger cookies silently."""


class SignedCookies:
    """Reads and writes cookies that only this server can make."""

    def __init__(self, key: bytes, *, secure: bool, clock: Callable[[], float] = time.time) -> None:
        self._key = key
        self._secure = secure
        self._clock = clock

    def set(self, name: str, content: Mapping[str, Any], seconds: float) -> str:
        """Return a `Set-Cookie` header."""
        claims = {**content, "aud": name, "exp": int(self._clock() + seconds)}
        return self._header(name, jwt.encode(claims, self._key, "HS256"), int(seconds))

    def delete(self, name: str) -> str:
        """Return the `Set-Cookie` header that deletes a cookie."""
        return self._header(name, "", 0)

    def has(self, name: str, header: bytes | None) -> bool:
        """Return whether a `Cookie` header has this cookie, valid or not."""
        return header is not None and self._full_name(name).encode() in header

    def get(self, name: str, header: bytes | None) -> dict[str, Any] | None:
        """Return the content of a cookie; None if it is missing, expired or not made by this server."""
        value = cookie_parser((header or b"").decode("latin-1")).get(self._full_name(name), "")
        try:
            claims = jwt.decode(
                value,
                self._key,
                algorithms=["HS256"],
                audience=name,
                options={"require": ["exp", "aud"], "verify_exp": False},
            )
        except jwt.PyJWTError:
            return None
        return claims if claims["exp"] > self._clock() else None

    def _full_name(self, name: str) -> str:
        return f"__Host-{name}" if self._secure else name

    def _header(self, name: str, value: str, seconds: int) -> str:
        flags = "; Secure" if self._secure else ""
        return f"{self._full_name(name)}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{flags}"


class Sessions:
    """Finds callers by their session cookie."""

    def __init__(self, cookies: SignedCookies, settings: OidcSettings, groups: GroupPermissions) -> None:
        self._cookies = cookies
        self._lifetime = settings.session_lifetime
        self._groups = groups
        own = settings.redirect_url.removesuffix("/auth/callback")
        self._origins = Origins(["/".join(own.split("/")[:3])], ())

    def begin(self, identity: Identity) -> str:
        """Return the `Set-Cookie` header of a new session."""
        # Only the groups with a permission: people may have hundreds, and a cookie has 4 KiB.
        groups = sorted(self._groups.known_groups.intersection(identity.groups))
        cookie = self._cookies.set(_SESSION, {"name": identity.name, "groups": groups}, self._lifetime)
        if len(cookie) > _MAX_COOKIE:
            sentence = f"{len(groups)} of your groups have a permission here, too many for a cookie; use fewer groups"
            raise LoginRefused(403, sentence, who=identity.name)
        return cookie

    def end(self) -> str:
        """Return the `Set-Cookie` header that ends a session in the browser."""
        return self._cookies.delete(_SESSION)

    def has(self, cookie: bytes | None) -> bool:
        """Return whether a `Cookie` header has a session, valid or not."""
        return self._cookies.has(_SESSION, cookie)

    def caller(self, cookie: bytes | None) -> Caller | None:
        """Return the caller of a session, None without one; raise LoginRefused for one that is over."""
        if not self.has(cookie):
            return None
        session = self._cookies.get(_SESSION, cookie)
        given = self._groups.of(session["groups"]) if session is not None else None
        if session is None or given is None:
            raise LoginRefused(401, "the session is over; sign in again", detail='error="invalid_token"')
        return Caller(session["name"], given.role, "session", namespaces=given.namespaces)

    def check_origin(self, origin: bytes | None, host: bytes) -> None:
        """Raise HTTPException unless a change comes from a page of this server."""
        if origin is None:
            raise HTTPException(403, "changes in a session need the header `Origin`, which browsers send")
        self._origins.check(origin, host)


def session_key(settings: OidcSettings) -> bytes:
    """Return the key that signs cookies: that of the settings, or a new one."""
    path = settings.session_key_file
    return secrets.token_bytes(_KEY_BYTES) if path is None else _read_key(path)


def _read_key(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"setting oidc.session_key_file: can't read {path}: {error.strerror}") from None
    if len(key) < _KEY_BYTES:
        raise SettingsError(
            f"setting oidc.session_key_file: {path} must have at least {_KEY_BYTES} random bytes"
        )
    return key
