"""The objects of a workload as a tree: what controls what, down to the pods."""

from typing import NamedTuple

from gpufleet.fleet.ownership import Ownership


class ObjectTree(NamedTuple):
    """An object and what it controls."""

    uid: str
    kind: str
    name: str
    namespace: str
    children: tuple["ObjectTree", ...]


def object_tree(ownership: Ownership, uid: str, above: frozenset[str] = frozenset()) -> ObjectTree:
    """Return an object with everything it controls, ordered by kind and name.

    Objects in `above` are left out, so that a cycle of references ends.
    """
    children = [
        object_tree(ownership, child, above | {uid})
        for child in ownership.children_of(uid)
        if child not in above and child != uid
    ]
    ordered = tuple(sorted(children, key=lambda tree: (tree.kind, tree.name, tree.uid)))
    found = ownership.pods.get(uid) or ownership.owners.get(uid)
    if found is not None:
        return ObjectTree(uid, found.kind, found.name, found.namespace, ordered)
    reference = ownership.reference_to(uid)
    namespace = ordered[0].namespace if ordered else ""
    if reference is None:
        return ObjectTree(uid, "", uid, namespace, ordered)
    return ObjectTree(uid, reference.kind, reference.name, namespace, ordered)
