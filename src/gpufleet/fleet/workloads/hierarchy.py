"""The objects of a workload as a tree: what controls what, down to the pods."""

import itertools
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


def object_tree(ownership: Ownership, uid: str) -> ObjectTree:
    """Return an object with everything it controls, ordered by kind and name; `MAX_DEPTH` levels at most."""
    children = [object_tree(ownership, child) for child in ownership.children_of(uid)]
    ordered = tuple(sorted(children, key=lambda tree: (tree.kind, tree.name, tree.uid)))
    found = ownership.pods.get(uid) or ownership.owners.get(uid)
    if found is not None:
        return ObjectTree(uid, found.kind, found.name, found.namespace, ordered)
    reference = ownership.reference_to(uid)
    namespace = ordered[0].namespace if ordered else ""
    if reference is None:
        return ObjectTree(uid, "", uid, namespace, ordered)
    return ObjectTree(uid, reference.kind, reference.name, namespace, ordered)


def objects_of(tree: ObjectTree) -> Iterator[ObjectTree]:
    """Yield the top of the tree and all objects below it."""
    waiting = [tree]
    while waiting:
        yield (found := waiting.pop())
        waiting += reversed(found.children)


def uids_below(tree: ObjectTree) -> Iterator[str]:
    """Yield the uids of all objects below the top of the tree."""
    return (found.uid for found in itertools.islice(objects_of(tree), 1, None))


def subtree(tree: ObjectTree, uid: str) -> ObjectTree | None:
    """Return the part of the tree whose top is the object with that uid, if it is in the tree."""
    return next((found for found in objects_of(tree) if found.uid == uid), None)
