"""The three kinds of patches.

`merge` and `apply` describe a desired state, so sending them twice is harmless and they are
retried. A `json` patch lists operations, which a retry could apply twice.
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
        """Return whether this is a server-side apply."""
        return self.content_type.startswith("application/apply-patch")

    def query(self, field_manager: str) -> dict[str, str]:
        """Return the query parameters of the request."""
        query = {"fieldManager": self.manager or field_manager}
        if self.force:
            query["force"] = "true"
        return query

    def body(self, api_version: str, kind: str, name: str, namespace: str) -> bytes:
        """Return the request body; an apply must include apiVersion, kind and name."""
        if not self.is_apply:
            return msgspec.json.encode(self.content)
        fields = msgspec.to_builtins(self.content)
        meta = {**fields.get("metadata", {}), "name": name}
        if namespace:
            meta["namespace"] = namespace
        return msgspec.json.encode({**fields, "apiVersion": api_version, "kind": kind, "metadata": meta})


def merge(fields: Mapping[str, Any]) -> Patch:
    """Set these fields, delete those that are None, and keep all others (RFC 7396)."""
    # With a resource version it is a compare-and-set: a retry would conflict with its own first try.
    versioned = "resourceVersion" in (fields.get("metadata") or {})
    return Patch("application/merge-patch+json", fields, repeatable=not versioned)


def json(operations: Sequence[Mapping[str, Any]]) -> Patch:
    """Apply these operations in order (RFC 6902)."""
    return Patch("application/json-patch+json", operations, repeatable=False)


def apply(fields: Mapping[str, Any] | msgspec.Struct, *, manager: str = "", force: bool = True) -> Patch:
    """Own exactly these fields (server-side apply); `force` takes them over from other managers."""
    return Patch(_APPLY, fields, repeatable=True, force=force, manager=manager)


# JSON is valid YAML, and servers before 1.34 accept only apply-patch+yaml.
_APPLY: Literal["application/apply-patch+yaml"] = "application/apply-patch+yaml"
