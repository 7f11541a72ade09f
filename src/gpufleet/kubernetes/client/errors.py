"""Errors of the Kubernetes API.

KubernetesUnavailable      a retry may help
├── Unreachable            no connection: the server has done nothing
├── Unanswered             no response: a write may have been done
├── TooManyRequests        429; `retry_after` in seconds
├── ServerFault            5xx
├── UndecodableResponse    the response is not a Kubernetes object
└── TooLarge               a response or a list exceeds a limit of the settings
KubernetesRefused          the server refused the request; `status` has its reason
├── BadRequest 400         ├── ObjectNotFound 404 (also gpufleet.errors.NotFound)
├── Unauthorized 401       ├── Conflict 409, and AlreadyExists
├── Forbidden 403          ├── Gone 410
└── Invalid 422
"""

from collections.abc import Mapping

import msgspec

from gpufleet import errors
from gpufleet.errors import GpufleetError, KubernetesUnavailable


class StatusCause(msgspec.Struct, frozen=True):
    """One cause in a Status."""

    reason: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The details of a Status that the client reads."""

    retry_after_seconds: float | None = None
    causes: tuple[StatusCause, ...] = ()


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """The server's description of an error."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class Unreachable(KubernetesUnavailable):
    """There is no connection to the server: it has done nothing."""


class Unanswered(KubernetesUnavailable):
    """The server did not respond; a write may or may not have been done."""


class TooManyRequests(KubernetesUnavailable):
    """The server asks to slow down (429)."""

    def __init__(self, message: str, status: Status, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class ServerFault(KubernetesUnavailable):
    """The server failed at the request (5xx)."""

    def __init__(self, message: str, status: Status, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


class UndecodableResponse(KubernetesUnavailable):
    """The response is not a Kubernetes object: perhaps a proxy's page or a truncated stream."""


class TooLarge(KubernetesUnavailable):
    """A response or a list is larger than the settings allow, or a list does not end."""


class KubernetesRefused(GpufleetError):
    """The server refused the request; a retry won't help."""

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message)
        self.status = status


class BadRequest(KubernetesRefused):
    """The request is malformed (400)."""


class Unauthorized(KubernetesRefused):
    """The server does not accept our credentials (401)."""


class Forbidden(KubernetesRefused):
    """Our identity may not do this (403)."""


class ObjectNotFound(KubernetesRefused, errors.NotFound):
    """The object or its kind does not exist (404)."""


class Conflict(KubernetesRefused):
    """The object has changed since it was read, or a precondition does not hold (409)."""


class AlreadyExists(Conflict):
    """An object of that name already exists (409)."""


class Gone(KubernetesRefused):
    """The resource version or continue token has expired (410), or is newer than the server's: list again."""


class Invalid(KubernetesRefused):
    """The object violates its schema or a validation rule (422)."""


_REFUSALS: Mapping[int, type[KubernetesRefused]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: ObjectNotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
}

_TOO_LARGE = StatusCause("ResourceVersionTooLarge")
_status = msgspec.json.Decoder(Status)


def error_from_response(
    code: int, body: bytes, request: str, retry_after: float | None = None
) -> KubernetesRefused | TooManyRequests | ServerFault:
    """Return the error for a response with an HTTP status of 400 or above."""
    try:
        status = _status.decode(body)
    except msgspec.MsgspecError:
        # The page of a proxy or load balancer in between: not repeated in the message.
        status = Status(code=code, message=f"HTTP {code}")
    return error_from_status(code, status, request, retry_after)


def error_from_status(
    code: int, status: Status, request: str, retry_after: float | None = None
) -> KubernetesRefused | TooManyRequests | ServerFault:
    """Return the error for a Status from a response body or from a watch's ERROR event."""
    message = f"{request}: {status.message or status.reason or f'HTTP {code}'}"
    if retry_after is None and status.details is not None:
        retry_after = status.details.retry_after_seconds
    if code == 429:
        return TooManyRequests(message, status, retry_after)
    if status.details is not None and _TOO_LARGE in status.details.causes:
        # The server was reinstalled, or its data restored from a backup.
        return Gone(message, status)
    if code >= 500:
        return ServerFault(message, status, retry_after)
    if status.reason == "AlreadyExists":
        return AlreadyExists(message, status)
    return _REFUSALS.get(code, KubernetesRefused)(message, status)
