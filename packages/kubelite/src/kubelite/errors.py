"""What the server answers when it can't do what was asked: a Kubernetes `Status`.

One exception carries code, reason, message and details; the functions below build the
usual ones with the sentences that clients (and people who read kubectl's output) know.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
}


@dataclass(frozen=True)
class Cause:
    """One thing wrong with one field."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def wire(self) -> dict[str, str]:
        """As it stands in `details.causes`."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(Exception):
    """A refusal with its HTTP code and Kubernetes reason."""

    def __init__(
        self, code: int, message: str, *, reason: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or REASONS.get(code, "")
        self.details = details

    def wire(self) -> dict[str, Any]:
        """The `Status` object that goes out."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            status["reason"] = self.reason
        if self.details is not None:
            status["details"] = dict(self.details)
        status["code"] = self.code
        return status


def resource_name(group: str, plural: str) -> str:
    """A resource as messages name it: `pods`, `deployments.apps`."""
    return f"{plural}.{group}" if group else plural


def _details(group: str, kind: str, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {}
    if name:
        details["name"] = name
    if group:
        details["group"] = group
    details["kind"] = kind
    return details


def bad_request(message: str) -> ApiError:
    """400: the request makes no sense."""
    return ApiError(400, message)


def no_such_resource() -> ApiError:
    """404: the path names no resource that is served."""
    return ApiError(404, "the server could not find the requested resource", details={})


def not_found(group: str, plural: str, name: str) -> ApiError:
    """404: the resource is served, the object is not there."""
    return ApiError(
        404, f'{resource_name(group, plural)} "{name}" not found', details=_details(group, plural, name)
    )


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """409: an object of that name is there."""
    return ApiError(
        409,
        f'{resource_name(group, plural)} "{name}" already exists',
        reason="AlreadyExists",
        details=_details(group, plural, name),
    )


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    """409: somebody else was faster, or a precondition does not hold."""
    return ApiError(
        409,
        f'Operation cannot be fulfilled on {resource_name(group, plural)} "{name}": {why}',
        details=_details(group, plural, name),
    )


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def apply_conflict(conflicts: Sequence[tuple[str, str]]) -> ApiError:
    """409: server-side apply would take fields from others; pairs of (manager in words, field)."""
    by_manager: dict[str, list[str]] = {}
    for manager, field in conflicts:
        by_manager.setdefault(manager, []).append(field)
    lines: list[str] = []
    for manager, fields in sorted(by_manager.items()):
        if len(by_manager) == 1 and len(fields) == 1:
            lines.append(f"conflict with {manager}: {fields[0]}")
        else:
            lines.append(f"conflicts with {manager}:" + "".join(f"\n- {field}" for field in fields))
    noun = "conflict" if len(conflicts) == 1 else "conflicts"
    causes = [
        Cause(field, f"conflict with {manager}", "FieldManagerConflict").wire()
        for manager, field in conflicts
    ]
    return ApiError(
        409,
        f"Apply failed with {len(conflicts)} {noun}: " + "\n".join(lines),
        details={"causes": causes},
    )


def invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """422: the object breaks rules; one cause for each."""
    sentences = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    text = sentences[0] if len(sentences) == 1 else "[" + ", ".join(sentences) + "]"
    title = f"{kind}.{group}" if group else kind
    details = _details(group, kind, name)
    details["causes"] = [cause.wire() for cause in causes]
    return ApiError(422, f'{title} "{name}" is invalid: {text}', details=details)


def expired(message: str) -> ApiError:
    """410: a resource version or continue token is older than what is kept."""
    return ApiError(410, message)


def forbidden(group: str, plural: str, name: str, why: str) -> ApiError:
    """403: understood, and refused."""
    return ApiError(
        403,
        f'{resource_name(group, plural)} "{name}" is forbidden: {why}',
        details=_details(group, plural, name),
    )


def method_not_allowed() -> ApiError:
    """405: the resource does not take this verb."""
    return ApiError(405, "the server does not allow this method on the requested resource", details={})


def success(group: str, plural: str, name: str, uid: str) -> dict[str, Any]:
    """The `Status` that answers a finished deletion."""
    details = _details(group, plural, name)
    if uid:
        details["uid"] = uid
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
