"""Kinds and the registry of served kinds.

A `Kind` is one resource in one version, as plain data. Built-in kinds come from `builtin.kinds`;
CustomResourceDefinitions add kinds at run time. All versions of a resource share one collection of
the store (`Kind.collection`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kubelite.schema.tree import Node

ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
SELECTABLE = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True)
class Column:
    """A printer column. Columns of custom resources have a JSONPath."""

    name: str
    type: str = "string"
    path: str = ""
    format: str = ""
    priority: int = 0
    description: str = ""


@dataclass(frozen=True)
class Scale:
    """The paths behind the `scale` subresource."""

    spec_path: str = ".spec.replicas"
    status_path: str = ".status.replicas"
    selector_path: str = ""


@dataclass(frozen=True, eq=False)
class Kind:
    """A resource in one version."""

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    schema: Node
    type_name: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    status: bool = False
    scale: Scale | None = None
    extra_subresources: tuple[str, ...] = ()
    fields: tuple[str, ...] = SELECTABLE
    columns: tuple[Column, ...] = ()
    collection: str = ""
    custom: bool = False
    unconditional_update: bool = True
    generation: bool = False
    list_kind: str = ""
    source: dict[str, Any] = field(default_factory=dict)
    validator: Any = None
    rules: Any = None
    warning: str = ""

    @property
    def api_version(self) -> str:
        """The group and version, such as `v1` or `apps/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored(self) -> bool:
        """Whether objects of the kind are stored. Reviews are not."""
        return "get" in self.verbs


class Registry:
    """The served kinds by group, version and plural."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._by_path: dict[tuple[str, str, str], Kind] = {}
        self.changes = 0
        for kind in kinds:
            self.add(kind)

    def add(self, kind: Kind) -> None:
        """Serve a kind."""
        self._by_path[kind.group, kind.version, kind.plural] = kind
        self.changes += 1

    def remove(self, group: str, plural: str) -> None:
        """Stop serving a resource in all versions."""
        for path in [p for p in self._by_path if p[0] == group and p[2] == plural]:
            del self._by_path[path]
        self.changes += 1

    def find(self, group: str, version: str, plural: str) -> Kind | None:
        """Return the kind for a path, or None."""
        return self._by_path.get((group, version, plural))

    def by_kind(self, api_version: str, kind: str) -> Kind | None:
        """Return the kind for an object's apiVersion and kind, or None."""
        for each in self._by_path.values():
            if each.kind == kind and each.api_version == api_version and each.stored:
                return each
        return None

    def for_collection(self, collection: str) -> Kind | None:
        """Return a kind of any version whose objects are in a collection, or None."""
        return next((kind for kind in self._by_path.values() if kind.collection == collection), None)

    def group_versions(self) -> dict[str, list[str]]:
        """Return the versions of each group in serving order."""
        found: dict[str, list[str]] = {}
        for kind in self._by_path.values():
            versions = found.setdefault(kind.group, [])
            if kind.version not in versions:
                versions.append(kind.version)
        return found

    def of(self, group: str, version: str) -> list[Kind]:
        """Return the kinds of a group version sorted by plural."""
        kinds = [kind for kind in self._by_path.values() if (kind.group, kind.version) == (group, version)]
        return sorted(kinds, key=lambda kind: kind.plural)
