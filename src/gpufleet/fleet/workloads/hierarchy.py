"""The objects of a workload as a tree: what controls what, down to the pods."""

from collections.abc import Iterator
from typing import NamedTuple

from gpufleet.fleet.workloads.ownership import Ownership


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


def uids_below(tree: ObjectTree) -> Iterator[str]:
    """Yield the uids of all objects below the top of the tree."""
    for child in tree.children:
        yield child.uid
        yield from uids_below(child)


def subtree(tree: ObjectTree, uid: str) -> ObjectTree | None:
    """Return the part of the tree whose top is the object with that uid, if it is in the tree."""
    if tree.uid == uid:
        return tree
    return next((found for child in tree.children if (found := subtree(child, uid)) is not None), None)
