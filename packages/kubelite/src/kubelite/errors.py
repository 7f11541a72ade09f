"""Errors as Kubernetes `Status` objects.

`ApiError` carries code, reason, message and details. The functions build the usual errors with
the messages of kube-apiserver, which clients and users of kubectl know.
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
    """One invalid field."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def wire(self) -> dict[str, str]:
        """Return an entry of `details.causes`."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(Exception):
    """An error with its HTTP code and Kubernetes reason."""

    def __init__(
        self, code: int, message: str, *, reason: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or REASONS.get(code, "")
        self.details = details

    def wire(self) -> dict[str, Any]:
        """Return the `Status` object."""
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
    """Return a resource as messages name it: `pods`, `deployments.apps`."""
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
    """Return a 400: the request is malformed."""
    return ApiError(400, message)


def no_such_resource() -> ApiError:
    """Return a 404: the path names no served resource."""
    return ApiError(404, "the server could not find the requested resource", details={})


def not_found(group: str, plural: str, name: str) -> ApiError:
    """Return a 404: the object does not exist."""
    return ApiError(
        404, f'{resource_name(group, plural)} "{name}" not found', details=_details(group, plural, name)
    )


def already_exists(group: str, plural: str, name: str) -> ApiError:
    """Return a 409: the name is taken."""
    return ApiError(
        409,
        f'{resource_name(group, plural)} "{name}" already exists',
        reason="AlreadyExists",
        details=_details(group, plural, name),
    )


def conflict(group: str, plural: str, name: str, why: str) -> ApiError:
    """Return a 409: the object has changed or a precondition fails."""
    return ApiError(
        409,
        f'Operation cannot be fulfilled on {resource_name(group, plural)} "{name}": {why}',
        details=_details(group, plural, name),
    )


STALE = "the object has been modified; please apply your changes to the latest version and try again"


def apply_conflict(conflicts: Sequence[tuple[str, str]]) -> ApiError:
    """Return a 409 for server-side apply from pairs of manager description and field."""
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
    """Return a 422 with one cause per invalid field."""
    sentences = [f"{cause.field}: {cause.message}" if cause.field else cause.message for cause in causes]
    text = sentences[0] if len(sentences) == 1 else "[" + ", ".join(sentences) + "]"
    title = f"{kind}.{group}" if group else kind
    details = _details(group, kind, name)
    details["causes"] = [cause.wire() for cause in causes]
    return ApiError(422, f'{title} "{name}" is invalid: {text}', details=details)


def expired(message: str) -> ApiError:
    """Return a 410: a resource version or continue token is too old."""
    return ApiError(410, message)


def forbidden(group: str, plural: str, name: str, why: str) -> ApiError:
    """Return a 403."""
    return ApiError(
        403,
        f'{resource_name(group, plural)} "{name}" is forbidden: {why}',
        details=_details(group, plural, name),
    )


def method_not_allowed() -> ApiError:
    """Return a 405: the resource does not support the verb."""
    return ApiError(405, "the server does not allow this method on the requested resource", details={})


def success(group: str, plural: str, name: str, uid: str) -> dict[str, Any]:
    """Return the `Status` of a completed deletion."""
    details = _details(group, plural, name)
    if uid:
        details["uid"] = uid
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
