"""Read the discovery document and the signing keys of an OpenID Connect provider, and redeem codes.

Nothing is read before the first login, so the server starts while the provider is down. The keys are read again
after an hour, so that a key that the provider withdrew stops counting, and when a token names an unknown key,
because providers rotate them. A caller can name any key: reading again is limited to once in `RETRY_SECONDS`.
"""

import asyncio
import base64
import ssl
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from gpufleet.errors import IdentityProviderUnavailable, SettingsError, connection_problem
from gpufleet.runtime.listening import is_loopback
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.response_body import BodyReader
from gpufleet.runtime.settings import OidcSettings
from gpufleet.server.auth.permissions import LoginRefused

RETRY_SECONDS = 10.0
MAX_AGE_SECONDS = 3600.0
_MAX_BYTES = 1024 * 1024
_TIMEOUT = 10.0
_BASIC = "client_secret_basic"
_log = get_logger("auth")

Jwk = dict[str, Any]
T = TypeVar("T")


class Metadata(msgspec.Struct, frozen=True):
    """The discovery document, as far as it is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = (_BASIC,)


class _KeySet(msgspec.Struct):
    keys: list[Jwk]


class _Tokens(msgspec.Struct):
    id_token: str


class _Error(msgspec.Struct):
    error: str = ""


class Provider:
    """A client of one provider."""

    def __init__(self, settings: OidcSettings, clock: Callable[[], float] = time.monotonic) -> None:
        _check(settings)
        self._settings = settings
        self._clock = clock
        self._tls = _tls(settings)
        self._lock = asyncio.Lock()
        self._metadata: Metadata | None = None
        self._keys: list[Jwk] = []
        self._read_at = self._tried_at = float("-inf")
        self._problem = ""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT)
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=8)
        self._session = aiohttp.ClientSession(timeout=timeout, connector=connector)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def probe(self) -> str:
        """Return the provider's issuer; raise IdentityProviderUnavailable if it could not be read."""
        return f"issuer {(await self.metadata()).issuer}"

    async def metadata(self) -> Metadata:
        """Return the discovery document."""
        if self._metadata is None or self._is_old():
            await self._refresh()
        if self._metadata is None:
            raise IdentityProviderUnavailable(self._problem)
        return self._metadata

    async def keys(self, kid: str | None) -> list[Jwk]:
        """Return the keys that may have signed a token with this key id; all of them without one."""
        if not self._keys or self._is_old() or not self._matching(kid):
            await self._refresh()
        if not self._keys:
            raise IdentityProviderUnavailable(self._problem)
        return self._matching(kid)

    async def redeem(self, code: str, code_verifier: str) -> str:
        """Return the ID token for an authorization code; raise LoginRefused if the provider refuses it."""
        settings, metadata = self._settings, await self.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": settings.redirect_url,
            "client_id": settings.client_id,
            "code_verifier": code_verifier,
        }
        headers = {"accept": "application/json"}
        if settings.client_secret_file is not None:
            secret = read_secret(settings)
            if _BASIC in metadata.token_endpoint_auth_methods_supported:
                pair = f"{quote(settings.client_id, safe='')}:{quote(secret, safe='')}"
                headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            else:
                form["client_secret"] = secret
        status, body = await self._request("POST", metadata.token_endpoint, data=form, headers=headers)
        if status != 200:
            raise LoginRefused(401, f"the identity provider refused the sign-in: {_error_code(body, status)}")
        return _decoded(body, _Tokens, metadata.token_endpoint).id_token

    def _matching(self, kid: str | None) -> list[Jwk]:
        return [key for key in self._keys if kid is None or key.get("kid") == kid]

    def _is_old(self) -> bool:
        return self._clock() - self._read_at > MAX_AGE_SECONDS

    async def _refresh(self) -> None:
        """Read the discovery document and the keys, unless that was tried a moment ago."""
        async with self._lock:
            if self._clock() - self._tried_at < RETRY_SECONDS:
                return
            self._tried_at = self._clock()
            try:
                metadata = await self._read_metadata()
                _, body = await self._request("GET", metadata.jwks_uri)
                keys = _decoded(body, _KeySet, metadata.jwks_uri).keys
            except IdentityProviderUnavailable as error:
                # Keys that were read before stay valid: the provider may be down for a while.
                self._problem = str(error)
                _log.warning("identity_provider_not_read", error=self._problem)
                return
            self._metadata, self._keys, self._read_at = metadata, keys, self._clock()

    async def _read_metadata(self) -> Metadata:
        issuer = self._settings.issuer
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        _, body = await self._request("GET", url)
        metadata = _decoded(body, Metadata, url)
        if metadata.issuer != issuer:
            raise IdentityProviderUnavailable(
                f"the provider calls itself {metadata.issuer!r}; set oidc.issuer to exactly that"
            )
        for endpoint in (metadata.authorization_endpoint, metadata.token_endpoint, metadata.jwks_uri):
            if not is_safe_url(endpoint):
                raise IdentityProviderUnavailable(f"{url} names an endpoint without https: {endpoint!r}")
        return metadata

    async def _request(self, method: str, url: str, **options: Any) -> tuple[int, bytes]:
        assert self._session is not None, "use the provider as a context manager"
        shown = f"{urlsplit(url).scheme}://{urlsplit(url).netloc}{urlsplit(url).path}"
        try:
            # A redirect could lead to an internal address.
            async with self._session.request(method, url, allow_redirects=False, **options) as response:
                body = await BodyReader(_MAX_BYTES, IdentityProviderUnavailable).read(response)
                if response.status != 200 and method == "GET":
                    raise IdentityProviderUnavailable(f"{shown} answered {response.status}")
                return response.status, bytes(body)
        except TimeoutError:
            raise IdentityProviderUnavailable(f"{shown} did not answer within {_TIMEOUT:g} s") from None
        except aiohttp.ClientError as error:
            raise IdentityProviderUnavailable(f"{shown}: {connection_problem(error)}") from None


def read_secret(settings: OidcSettings) -> str:
    """Return the client's secret."""
    assert settings.client_secret_file is not None
    try:
        return settings.client_secret_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"setting oidc.client_secret_file: can't read {settings.client_secret_file}: {error}"
        ) from None


def is_safe_url(url: str) -> bool:
    """Return whether `url` is https, or http to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def _check(settings: OidcSettings) -> None:
    """Raise SettingsError if the settings do not make a login."""
    if not is_safe_url(settings.issuer):
        raise SettingsError("setting oidc.issuer: it must begin with https://")
    if not settings.client_id:
        raise SettingsError("setting oidc.client_id: give the name that this server has at the provider")
    redirect = settings.redirect_url
    if redirect and not (is_safe_url(redirect) and redirect.endswith("/auth/callback")):
        raise SettingsError(
            "setting oidc.redirect_url: it must begin with https:// and end with /auth/callback"
        )
    if settings.client_secret_file is not None:
        read_secret(settings)


def _tls(settings: OidcSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"setting oidc.ca_file: can't read {settings.ca_file}: {error}") from None


def _decoded(body: bytes, kind: type[T], url: str) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IdentityProviderUnavailable(
            f"the answer of {urlsplit(url).netloc} is not valid: {error}"
        ) from None


def _error_code(body: bytes, status: int) -> str:
    """Return the error code of RFC 6749, never its description: that may repeat the request."""
    try:
        code = msgspec.json.decode(body, type=_Error).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        code = ""
    return code[:64] if code.isascii() and code.isprintable() and code else f"status {status}"
