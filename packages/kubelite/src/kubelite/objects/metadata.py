"""Object metadata: names, uids, timestamps, and validation of labels, annotations and owners."""

import re
import secrets
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from kubelite.errors import Cause
from kubelite.json import Json
from kubelite.kinds import Kind

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_SUFFIX_LETTERS = "bcdfghjklmnpqrstvwxz2456789"

SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation "
    "is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
ANNOTATION_BYTES = 256 * 1024
_KINDS_WITH_FREE_NAMES = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}


def timestamp(moment: datetime) -> str:
    """Return a time as RFC 3339 in UTC with whole seconds."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"


def new_uid() -> str:
    """Return a random uid."""
    return str(uuid.uuid4())


def generate_name(prefix: str) -> str:
    """Return a random name for a `generateName` prefix, truncated to the maximum length."""
    return prefix[:58] + "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))


def metadata_errors(kind: Kind, metadata: Mapping[str, Any]) -> list[Cause]:
    """Return the errors in names, labels, annotations and owner references."""
    errors = _name_errors(kind, metadata.get("name", ""))
    for key, value in (metadata.get("labels") or {}).items():
        errors += _key_errors("metadata.labels", key)
        if value and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):
            rule = "must be no more than 63 bytes" if len(value) > 63 else VALUE_RULE
            errors.append(Cause("metadata.labels", f'Invalid value: "{value}": {rule}'))
    size = 0
    for key, value in (metadata.get("annotations") or {}).items():
        errors += _key_errors("metadata.annotations", key.lower())
        size += len(key) + len(value)
    if size > ANNOTATION_BYTES:
        errors.append(
            Cause(
                "metadata.annotations",
                f"Too long: may not be more than {ANNOTATION_BYTES} bytes",
                "FieldValueTooLong",
            )
        )
    return errors + _owner_errors(metadata.get("ownerReferences") or ())


def _name_errors(kind: Kind, name: str) -> list[Cause]:
    if not name:
        return [
            Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
        ]
    if kind.kind in _KINDS_WITH_FREE_NAMES and not kind.custom:
        bad = name in (".", "..") or "/" in name or "%" in name
        return (
            [Cause("metadata.name", f"Invalid value: \"{name}\": may not contain '/' or '%'")] if bad else []
        )
    if kind.kind in ("Namespace", "Service") and not kind.custom:
        if len(name) > 63:
            return [Cause("metadata.name", f'Invalid value: "{name}": must be no more than 63 bytes')]
        return (
            []
            if _LABEL.fullmatch(name)
            else [Cause("metadata.name", f'Invalid value: "{name}": {LABEL_RULE}')]
        )
    if len(name) > 253:
        return [Cause("metadata.name", f'Invalid value: "{name}": must be no more than 253 bytes')]
    return (
        []
        if _SUBDOMAIN.fullmatch(name)
        else [Cause("metadata.name", f'Invalid value: "{name}": {SUBDOMAIN_RULE}')]
    )


def _key_errors(field: str, key: str) -> list[Cause]:
    prefix, slash, name = key.rpartition("/")
    if slash and not (len(prefix) <= 253 and _SUBDOMAIN.fullmatch(prefix)):
        return [Cause(field, f'Invalid value: "{key}": prefix part {SUBDOMAIN_RULE}')]
    if len(name) > 63 or not _QUALIFIED.fullmatch(name):
        return [
            Cause(
                field,
                f"Invalid value: \"{key}\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            )
        ]
    return []


def _owner_errors(owners: Any) -> list[Cause]:
    errors: list[Cause] = []
    controllers = [owner for owner in owners if owner.get("controller")]
    for index, owner in enumerate(owners):
        errors += [
            Cause(
                f"metadata.ownerReferences[{index}].{name}",
                "Required value: must not be empty",
                "FieldValueRequired",
            )
            for name in ("apiVersion", "kind", "name", "uid")
            if not owner.get(name)
        ]
    if len(controllers) > 1:
        errors.append(
            Cause(
                "metadata.ownerReferences",
                "Invalid value: Only one reference can have Controller set to true",
            )
        )
    return errors


def new_metadata(kind: Kind, metadata: Json, now: datetime) -> Json:
    """Return the metadata of a new object: server fields set, fields a client may not set removed."""
    result = {
        name: value
        for name, value in metadata.items()
        if name
        not in (
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "resourceVersion",
            "managedFields",
        )
    }
    result["uid"] = new_uid()
    result["creationTimestamp"] = timestamp(now)
    if kind.generation or kind.custom:
        result["generation"] = 1
    else:
        result.pop("generation", None)
    return result
