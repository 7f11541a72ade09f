"""Log in at an OpenID Connect provider without a browser on this machine (RFC 8628).

The provider shows a code and an address; the user opens it anywhere. Meanwhile this program polls for the token.
"""

import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from gpufleet.errors import GpufleetError, Unavailable, connection_problem

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
TIMEOUT = 30.0


class Discovery(msgspec.Struct):
    """The endpoints of a provider."""

    issuer: str
    token_endpoint: str
    device_authorization_endpoint: str = ""


class DeviceCode(msgspec.Struct):
    """What the user must open and enter."""

    device_code: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_in: float = 600
    interval: float = 5


class Granted(msgspec.Struct):
    """The answer of the token endpoint: tokens, or why there are none yet."""

    id_token: str = ""
    access_token: str = ""
    expires_in: float = 3600
    error: str = ""
    error_description: str = ""


def device_login(
    http: httpx.Client,
    issuer: str,
    client_id: str,
    scopes: str,
    show: Callable[[DeviceCode], None],
    *,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> tuple[str, float]:
    """Return the ID token and when it expires, after the user has entered the code."""
    found = _get(http, f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if found.issuer != issuer:
        raise GpufleetError(f"the provider calls itself {found.issuer}; give that as --issuer")
    if not found.device_authorization_endpoint:
        raise GpufleetError(f"{issuer} has no device login; use a token with --token-file")
    form = {"client_id": client_id, "scope": scopes}
    code = _post(http, found.device_authorization_endpoint, form, DeviceCode)
    show(code)
    interval, until = code.interval, clock() + code.expires_in
    while clock() < until:
        pause(interval)
        form = {"grant_type": GRANT, "device_code": code.device_code, "client_id": client_id}
        granted = _post(http, found.token_endpoint, form, Granted)
        if granted.error == "slow_down":
            interval += 5
        elif granted.error and granted.error != "authorization_pending":
            raise GpufleetError(f"the provider refused: {granted.error_description or granted.error}")
        elif not granted.error:
            return _token(granted), clock() + granted.expires_in
    raise GpufleetError("the code has expired; run `gpufleet login` again")


def _token(granted: Granted) -> str:
    if not granted.id_token:
        raise GpufleetError("the provider returned no ID token; add openid to --scopes")
    return granted.id_token


def _get(http: httpx.Client, url: str) -> Discovery:
    found: Discovery = _decoded(_sent(lambda: http.get(url), url), Discovery)
    return found


def _post(http: httpx.Client, url: str, form: dict[str, str], kind: type[Any]) -> Any:
    response = _sent(lambda: http.post(url, data=form), url)
    if response.is_error and kind is not Granted:
        granted = _decoded(response, Granted)
        raise GpufleetError(f"the provider refused: {granted.error_description or granted.error}")
    return _decoded(response, kind)


def _sent(send: Callable[[], httpx.Response], url: str) -> httpx.Response:
    try:
        return send()
    except httpx.TransportError as error:
        raise Unavailable(f"no answer from {url}: {connection_problem(error)}") from error


def _decoded(response: httpx.Response, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(response.content, type=kind)
    except msgspec.MsgspecError as error:
        raise GpufleetError(f"{response.url} is not an OpenID Connect provider: {error}") from error
