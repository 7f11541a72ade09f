"""AdmissionReview (admission.k8s.io/v1): what the API server asks, and what it is told."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpufleet.errors import InvalidRequest

Json = dict[str, Any]
MOST_BYTES = 8 * 1024 * 1024
"""Largest review: an object and its former state, each as large as etcd takes it, and some."""


class UserInfo(msgspec.Struct, frozen=True):
    """Who wants the change."""

    username: str = ""


class AdmissionRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The change that is asked about."""

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
class AdmissionVerdict:
    """Allowed with a patch and warnings, or refused with a sentence and a status code."""

    patch: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = ()
    refusal: str = ""
    code: int = 422
    reason: str = field(default="Invalid")


def read_review(body: bytes) -> AdmissionRequest:
    """The question in a request's body; InvalidRequest if there is none."""
    try:
        return _decoder.decode(body).request
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"not an AdmissionReview of admission.k8s.io/v1: {error}") from error


def write_review(uid: str, verdict: AdmissionVerdict) -> bytes:
    """The answer as the API server reads it."""
    response: Json = {"uid": uid, "allowed": not verdict.refusal}
    if verdict.refusal:
        response["status"] = {
            "status": "Failure",
            "code": verdict.code,
            "reason": verdict.reason,
            "message": verdict.refusal,
        }
    elif verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(verdict.patch)).decode()
    if verdict.warnings:
        response["warnings"] = list(verdict.warnings)
    return msgspec.json.encode(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    )


_decoder = msgspec.json.Decoder(_Review)
