"""What can go wrong at the Kubernetes API, drawn as a tree.

KubernetesUnavailable      trying again later may help
├── Unreachable            no request got through: nothing was done
├── Unanswered             sent, but no answer came: a write may have been done
├── TooManyRequests        429; `retry_after` says when
└── ServerFault            5xx
KubernetesRefused          the server understood and said no; `status` is its own word
├── BadRequest 400         ├── NotFound 404 (also gpufleet.errors.NotFound)
├── Unauthorized 401       ├── Conflict 409, and AlreadyExists
├── Forbidden 403          ├── Gone 410
└── Invalid 422
UndecodableAnswer          the server said something that is not Kubernetes' language
"""

from collections.abc import Mapping

import msgspec

from gpufleet import errors
from gpufleet.errors import GpufleetError, KubernetesUnavailable


class StatusCause(msgspec.Struct, frozen=True):
    """One reason among those that a Status gives."""

    reason: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The part of a Status that code looks at."""

    name: str = ""
    kind: str = ""
    retry_after_seconds: float | None = None
    causes: tuple[StatusCause, ...] = ()


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """The server's own description of an error."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class Unreachable(KubernetesUnavailable):
    """No connection to the server could be made: nothing was done."""


class Unanswered(KubernetesUnavailable):
    """The request was sent and no answer came; a write may or may not have been done."""


class TooManyRequests(KubernetesUnavailable):
    """The server asks to slow down."""

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


class UndecodableAnswer(KubernetesUnavailable):
    """The answer is no Kubernetes object; perhaps a proxy spoke, or the stream was cut."""


class KubernetesRefused(GpufleetError):
    """The server understood the request and refused it; trying the same again won't help."""

    def __init__(self, message: str, status: Status) -> None:
        super().__init__(message)
        self.status = status


class BadRequest(KubernetesRefused):
    """The request is malformed (400)."""


class Unauthorized(KubernetesRefused):
    """The server doesn't accept our credentials (401)."""


class Forbidden(KubernetesRefused):
    """Our identity may not do this (403)."""


class ObjectNotFound(KubernetesRefused, errors.NotFound):
    """There is no such object, or no such kind (404)."""


class Conflict(KubernetesRefused):
    """The object has changed since it was read, or a precondition does not hold (409)."""


class AlreadyExists(Conflict):
    """An object of that name is there already (409)."""


class Gone(KubernetesRefused):
    """The resource version or continue token is too old (410), or newer than all that the server has: list again."""


class Invalid(KubernetesRefused):
    """The object breaks its schema or a rule (422)."""


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


def error_of(
    code: int, body: bytes, what: str, retry_after: float | None = None
) -> KubernetesRefused | TooManyRequests | ServerFault:
    """The error for an answer with an HTTP status of 400 or above; `what` says what was asked."""
    try:
        status = _status.decode(body)
    except msgspec.MsgspecError:
        # Not Kubernetes' own words: a proxy or a load balancer in between. Its page is not repeated.
        status = Status(code=code, message=f"HTTP {code}")
    return error_of_status(code, status, what, retry_after)


def error_of_status(
    code: int, status: Status, what: str, retry_after: float | None = None
) -> KubernetesRefused | TooManyRequests | ServerFault:
    """The error for a Status, be it the body of an answer or the object of a watch's ERROR event."""
    message = f"{what}: {status.message or status.reason or f'HTTP {code}'}"
    if retry_after is None and status.details is not None:
        retry_after = status.details.retry_after_seconds
    if code == 429:
        return TooManyRequests(message, status, retry_after)
    if status.details is not None and _TOO_LARGE in status.details.causes:
        # Not of this server's life: it was set up anew, or its data was restored from a backup.
        return Gone(message, status)
    if code >= 500:
        return ServerFault(message, status, retry_after)
    if status.reason == "AlreadyExists":
        return AlreadyExists(message, status)
    return _REFUSALS.get(code, KubernetesRefused)(message, status)
