"""The three ways to change a part of an object.

`merge` and `apply` say how fields shall be, so sending them twice is harmless and they are
retried; a `json` patch does something, which a second time may do again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec


@dataclass(frozen=True)
class Patch:
    """A patch, ready to be sent."""

    content_type: str
    content: Any
    repeatable: bool
    force: bool = False
    manager: str = ""

    @property
    def is_apply(self) -> bool:
        """Whether this is a server-side apply."""
        return self.content_type.startswith("application/apply-patch")

    def query(self, field_manager: str) -> dict[str, str]:
        """The query parameters that belong to it."""
        query = {"fieldManager": self.manager or field_manager}
        if self.force:
            query["force"] = "true"
        return query

    def body(self, api_version: str, kind: str, name: str, namespace: str) -> bytes:
        """As JSON; an applied object says what and who it is."""
        if not self.is_apply:
            return msgspec.json.encode(self.content)
        fields = msgspec.to_builtins(self.content)
        meta = {**fields.get("metadata", {}), "name": name}
        if namespace:
            meta["namespace"] = namespace
        return msgspec.json.encode({**fields, "apiVersion": api_version, "kind": kind, "metadata": meta})


def merge(fields: Mapping[str, Any]) -> Patch:
    """Set these fields, delete those that are None, keep all others (RFC 7396)."""
    # With a resource version it is a compare-and-set, whose second try would see its own first.
    versioned = "resourceVersion" in (fields.get("metadata") or {})
    return Patch("application/merge-patch+json", fields, repeatable=not versioned)


def json(operations: Sequence[Mapping[str, Any]]) -> Patch:
    """Do these operations one after the other (RFC 6902)."""
    return Patch("application/json-patch+json", operations, repeatable=False)


def apply(fields: Mapping[str, Any] | msgspec.Struct, *, manager: str = "", force: bool = True) -> Patch:
    """Be the owner of exactly these fields (server-side apply); `force` takes them from other owners."""
    return Patch(_APPLY, fields, repeatable=True, force=force, manager=manager)


# JSON is YAML, and servers before 1.34 know the name apply-patch+yaml only.
_APPLY: Literal["application/apply-patch+yaml"] = "application/apply-patch+yaml"
