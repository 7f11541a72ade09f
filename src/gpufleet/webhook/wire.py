"""AdmissionReview (admission.k8s.io/v1): decode requests of the API server, encode responses."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpufleet.errors import InvalidRequest

Json = dict[str, Any]
MAX_REVIEW_BYTES = 8 * 1024 * 1024
"""Enough for an object and its previous state, each up to etcd's limit of 1.5 MiB, with a margin."""
_MAX_VALUES = 500_000
"""Values in a review. One may need twenty times its text in memory; a pod of 1.5 MiB has about 100,000."""


class UserInfo(msgspec.Struct, frozen=True):
    """The user that sends the change."""

    username: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """A change to review."""

    uid: str
    operation: str = "CREATE"
    sub_resource: str = ""
    namespace: str = ""
    user_info: UserInfo = UserInfo()
    object: Json | None = None
    old_object: Json | None = None


class _Review(msgspec.Struct, frozen=True):
    request: AdmissionRequest


@dataclass(frozen=True)
class AdmissionResponse:
    """Allowed with a patch and warnings, or refused with a sentence and a status code."""

    patch: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    refusal: str = ""
    code: int = 422
    reason: str = "Invalid"


def decode_review(body: bytes) -> AdmissionRequest:
    """Return the request in an AdmissionReview; raise InvalidRequest for anything else."""
    if body.count(b",") + body.count(b"{") + body.count(b"[") > _MAX_VALUES:
        raise InvalidRequest(f"an AdmissionReview of more than {_MAX_VALUES} values")
    try:
        return _decoder.decode(body).request
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"not an AdmissionReview of admission.k8s.io/v1: {error}") from error


def encode_review(uid: str, answer: AdmissionResponse) -> bytes:
    """Return an AdmissionReview with the response."""
    response: Json = {"uid": uid, "allowed": not answer.refusal}
    if answer.refusal:
        response["status"] = {
            "status": "Failure",
            "code": answer.code,
            "reason": answer.reason,
            "message": answer.refusal,
        }
    elif answer.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(answer.patch)).decode()
    if answer.warnings:
        response["warnings"] = list(answer.warnings)
    return msgspec.json.encode(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    )


_decoder = msgspec.json.Decoder(_Review)
