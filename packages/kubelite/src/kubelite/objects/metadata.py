"""Names, ids and times of objects: what the server itself writes into `metadata`."""

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
_ANY_NAME = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, to the second, as metadata carries it."""
    return moment.astimezone(UTC).isoformat(timespec="seconds")[:19] + "Z"


def new_uid() -> str:
    """A random object id."""
    return str(uuid.uuid4())


def generated_name(prefix: str) -> str:
    """A name from `generateName`, cut so that it fits."""
    return prefix[:58] + "".join(secrets.choice(_SUFFIX_LETTERS) for _ in range(5))


def metadata_faults(kind: Kind, metadata: Mapping[str, Any]) -> list[Cause]:
    """What is wrong with names, labels, annotations and owners."""
    faults = _name_faults(kind, metadata.get("name", ""))
    for key, value in (metadata.get("labels") or {}).items():
        faults += _key_faults("metadata.labels", key)
        if value and (len(value) > 63 or not _QUALIFIED.fullmatch(value)):
            rule = "must be no more than 63 bytes" if len(value) > 63 else VALUE_RULE
            faults.append(Cause("metadata.labels", f'Invalid value: "{value}": {rule}'))
    size = 0
    for key, value in (metadata.get("annotations") or {}).items():
        faults += _key_faults("metadata.annotations", key.lower())
        size += len(key) + len(value)
    if size > ANNOTATION_BYTES:
        faults.append(
            Cause(
                "metadata.annotations",
                f"Too long: may not be more than {ANNOTATION_BYTES} bytes",
                "FieldValueTooLong",
            )
        )
    return faults + _owner_faults(metadata.get("ownerReferences") or ())


def _name_faults(kind: Kind, name: str) -> list[Cause]:
    if not name:
        return [
            Cause("metadata.name", "Required value: name or generateName is required", "FieldValueRequired")
        ]
    if kind.kind in _ANY_NAME and not kind.custom:
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


def _key_faults(field: str, key: str) -> list[Cause]:
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


def _owner_faults(owners: Any) -> list[Cause]:
    faults: list[Cause] = []
    controllers = [owner for owner in owners if owner.get("controller")]
    for at, owner in enumerate(owners):
        faults += [
            Cause(
                f"metadata.ownerReferences[{at}].{name}",
                "Required value: must not be empty",
                "FieldValueRequired",
            )
            for name in ("apiVersion", "kind", "name", "uid")
            if not owner.get(name)
        ]
    if len(controllers) > 1:
        faults.append(
            Cause(
                "metadata.ownerReferences",
                "Invalid value: Only one reference can have Controller set to true",
            )
        )
    return faults


def start_metadata(kind: Kind, metadata: Json, now: datetime) -> Json:
    """The metadata of a new object: server-made fields set, those a client may not set dropped."""
    made = {
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
    made["uid"] = new_uid()
    made["creationTimestamp"] = timestamp(now)
    if kind.generation or kind.custom:
        made["generation"] = 1
    else:
        made.pop("generation", None)
    return made
