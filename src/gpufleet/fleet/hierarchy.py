"""A workload's objects as a tree: what controls what, down to the pods."""

from typing import NamedTuple

from gpufleet.fleet.owners import Owners


class Branch(NamedTuple):
    """An object and what it controls."""

    uid: str
    kind: str
    name: str
    namespace: str
    children: tuple["Branch", ...]


def tree_of(family: Owners, uid: str, above: frozenset[str] = frozenset()) -> Branch:
    """An object with everything that it controls, ordered by kind and name; one that is `above` itself is left out."""
    children = [
        tree_of(family, child, above | {uid})
        for child in family.children_of(uid)
        if child not in above and child != uid
    ]
    ordered = tuple(sorted(children, key=lambda b: (b.kind, b.name, b.uid)))
    found = family.pods.get(uid) or family.owners.get(uid)
    if found is not None:
        return Branch(uid, found.kind, found.name, found.namespace, ordered)
    reference = family.reference_to(uid)
    namespace = ordered[0].namespace if ordered else ""
    if reference is None:
        return Branch(uid, "", uid, namespace, ordered)
    return Branch(uid, reference.kind, reference.name, namespace, ordered)
