"""Owners and pods by uid, and the chains of controller references between them.

A workload is the top of a chain. Users write references, so one counts only if its owner is known with that
uid, kind and name, in the namespace of the object or outside namespaces. Otherwise (no permission to read
its kind, deleted before this process started, forged) the reference is a workload of its own, `UID@NAMESPACE`:
objects of one unread owner in one namespace stay together, and nothing of another namespace is shown with them.

An object more than `MAX_DEPTH` levels below the top is a workload of its own, so that a chain of any
length, or a cycle, costs a few lookups for each change.

A deleted object is kept as `gone` while other objects of its workload exist. Otherwise the last pods
of a ReplicaSet that was garbage-collected first would look like workloads of their own. A deleted
object with nothing below it is removed immediately: a CronJob lives for years while its Jobs come
and go.
"""

from collections.abc import Iterator

import msgspec

from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, QueueEntry, unread_owner
from gpufleet.runtime.logs import get_logger

KEPT_GONE_PODS = 200
"""Deleted pods kept per existing workload; older ones are only in the store."""

MAX_DEPTH = 10
"""Levels of references that are followed. The deepest in use have five: a CronWorkflow, its Workflow, a RayJob, its
RayCluster, a pod."""

_MAX_LOGGED = 100
"""Namespaces with a chain that is too long, of which one is logged each."""

_log = get_logger("fleet")


class Ownership:
    """The owner chains of one cluster.

    Every change returns the uids of the workloads that it affects.
    """

    def __init__(self) -> None:
        self.pods: dict[str, FleetPod] = {}
        self.owners: dict[str, FleetOwner] = {}
        self.moved: set[str] = set()
        """Pods that came to another workload by changes of other objects; whoever uses it clears it."""
        self._gone: dict[str, None] = {}
        self._parent: dict[str, str] = {}
        """The key of the owner of each object with a reference: its uid, or that of an unread owner."""
        self._children: dict[str, dict[str, None]] = {}
        """By the key of their owner."""
        self._referring: dict[str, dict[str, None]] = {}
        """By the uid in their reference, whether or not it counts."""
        self._members: dict[str, dict[str, None]] = {}
        self._root: dict[str, str] = {}
        self._uids_by_name: dict[tuple[str, str], str] = {}
        self._queued: set[str] = set()
        """The uids of queue entries, which tell about a workload and are no part of what exists of it."""
        self._logged: set[str] = set()

    def put_owner(self, owner: FleetOwner) -> set[str]:
        """Add or replace an owner."""
        before = self.owners.get(owner.uid)
        self.owners[owner.uid] = owner
        self._gone.pop(owner.uid, None)
        if owner.queued is not None:
            self._queued.add(owner.uid)
        return self._relink(before, owner) | {self.root_of(owner.uid)}

    def put_pod(self, pod: FleetPod) -> set[str]:
        """Add or replace a pod."""
        before = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        self._gone.pop(pod.uid, None)
        if before is not None and _name(before) != _name(pod):
            self._unname(before)
        self._uids_by_name[_name(pod)] = pod.uid
        touched = self._relink(before, pod)
        self.moved.discard(pod.uid)
        return touched | {self._root[pod.uid]}

    def drop_owner(self, uid: str) -> set[str]:
        """Mark a deleted owner as gone."""
        if uid not in self.owners:
            return set()
        self._gone[uid] = None
        return {self.root_of(uid), *self._prune(uid)}

    def drop_pod(self, uid: str, at: float) -> set[str]:
        """Mark a deleted pod as gone. It ended at `at`, unless it had ended before."""
        pod = self.pods.get(uid)
        if pod is None:
            return set()
        if not pod.ended:
            self.pods[uid] = msgspec.structs.replace(pod, ended=at)
        self._gone[uid] = None
        self._unname(pod)
        root = self._root[uid]
        return {root, *self._forget_oldest(root)}

    def uid_of(self, namespace: str, name: str) -> str | None:
        """Return the pod of that name, if it exists."""
        return self._uids_by_name.get((namespace, name))

    def uid_of_job(self, node: str, alias: str) -> str | None:
        """Return the pod of a Slurm job or container on a node, if it exists."""
        return self._uids_by_name.get((node, f"job {alias}"))

    def is_gone(self, uid: str) -> bool:
        """Return whether the object was deleted."""
        return uid in self._gone

    def root_of(self, uid: str) -> str:
        """Return the uid of the workload that the object belongs to."""
        return self._top(uid)[0]

    def pods_of(self, root: str) -> list[FleetPod]:
        """Return the pods of a workload, including deleted ones that are kept."""
        return [self.pods[uid] for uid in self._members.get(root, ())]

    def live_pods_of(self, root: str) -> list[FleetPod]:
        """Return the pods of a workload that are not deleted."""
        return [self.pods[uid] for uid in self._members.get(root, ()) if uid not in self._gone]

    def children_of(self, uid: str) -> list[str]:
        """Return the uids of the objects of the same workload whose controller this is."""
        if self._top(uid)[1] == MAX_DEPTH:
            return []
        return list(self._children.get(uid, ()))

    def queue_entry_of(self, root: str) -> QueueEntry | None:
        """Return the queue entry of a workload: the first that waits, or else the newest."""
        if not self._queued:
            return None
        below = (
            self.owners[uid] for uid in self._tree(root) if uid in self._queued and uid not in self._gone
        )
        found = [(each.created, each.queued) for each in below if each.queued is not None]
        waiting = [each for each in found if each[1].waits]
        return (min(waiting, key=_moment)[1] if waiting else max(found, key=_moment)[1]) if found else None

    def reference_to(self, uid: str) -> OwnerRef | None:
        """Return the reference of a child to an owner that is not known itself."""
        child = next(iter(self._children.get(uid, ())), None)
        return None if child is None else self._reference(child)

    def exists(self, root: str) -> bool:
        """Return whether any object of the workload still exists."""
        return any(
            uid not in self._gone
            for uid in self._tree(root)
            if (uid in self.owners and uid not in self._queued) or uid in self.pods
        )

    def forget(self, root: str) -> set[str]:
        """Remove a workload with everything below it."""
        touched = {each for uid in reversed(list(self._tree(root))) for each in self._remove(uid)}
        self._members.pop(root, None)
        return touched - {root}

    def _reference(self, uid: str) -> OwnerRef | None:
        return _reference(self.pods.get(uid) or self.owners.get(uid))

    def _top(self, uid: str) -> tuple[str, int]:
        """Return the workload of an object, and how many levels the object is below it."""
        top = uid
        for depth in range(MAX_DEPTH + 1):
            above = self._parent.get(top)
            if above is None:
                return top, depth
            top = above
        return uid, MAX_DEPTH

    def _tree(self, uid: str) -> Iterator[str]:
        """Yield the uid of an object, and then of all objects of its workload below it."""
        level = [uid]
        for _ in range(self._top(uid)[1], MAX_DEPTH + 1):
            yield from level
            level = [child for each in level for child in self._children.get(each, ())]

    def _relink(self, before: FleetOwner | FleetPod | None, now: FleetOwner | FleetPod) -> set[str]:
        """Link an object to its owner, and what refers to it to the object; return the affected workloads."""
        uid, old, new = now.uid, _reference(before), _reference(now)
        same = before is not None and _identity(before) == _identity(now)
        touched = self._link(uid, old, new) if not same or old != new else set()
        if not same:
            for child in list(self._referring.get(uid, ())):
                if self._key(child) != self._parent.get(child):
                    reference = self._reference(child)
                    touched |= self._link(child, reference, reference)
        return touched

    def _key(self, uid: str) -> str | None:
        """Return the key of an object's owner: its uid if the reference counts."""
        reference = self._reference(uid)
        if reference is None:
            return None
        child = self.pods.get(uid) or self.owners[uid]
        owner = self.owners.get(reference.uid) or self.pods.get(reference.uid)
        if owner is not None and _counts(reference, child, owner):
            return owner.uid
        return unread_owner(reference.uid, child.namespace)

    def _link(self, uid: str, old: OwnerRef | None, new: OwnerRef | None) -> set[str]:
        """Move an object to its owner; return the workloads that lose or get pods."""
        self._unlink(uid, old)
        if new is not None and (key := self._key(uid)) is not None:
            self._parent[uid] = key
            self._children.setdefault(key, {})[uid] = None
            self._referring.setdefault(new.uid, {})[uid] = None
        return self._reassign_pods(uid)

    def _unlink(self, uid: str, reference: OwnerRef | None) -> None:
        key = self._parent.pop(uid, None)
        for index, at in ((self._children, key), (self._referring, reference.uid if reference else None)):
            if at is not None and (siblings := index.get(at)) is not None:
                siblings.pop(uid, None)
                if not siblings:
                    del index[at]

    def _reassign_pods(self, uid: str) -> set[str]:
        """Recompute the workload of every pod below `uid`. What is deeper than `MAX_DEPTH` is not affected."""
        touched: set[str] = set()
        top, depth = self._top(uid)
        level = [uid]
        for below in range(MAX_DEPTH + 1):
            for each in level:
                cut = depth + below > MAX_DEPTH or (top == uid and uid in self._parent)
                touched |= self._assign(each, each if cut else top)
                if cut:
                    self._log_cut(each)
            level = [child for each in level for child in self._children.get(each, ()) if child != uid]
        return touched

    def _assign(self, pod: str, root: str) -> set[str]:
        if pod not in self.pods:
            return set()
        old = self._root.get(pod)
        if old == root:
            return {root}
        if old is not None:
            self._leave(old, pod)
            self.moved.add(pod)
        self._root[pod] = root
        self._members.setdefault(root, {})[pod] = None
        return {root} if old is None else {old, root}

    def _log_cut(self, uid: str) -> None:
        found = self.pods.get(uid) or self.owners.get(uid)
        if found is None or found.namespace in self._logged or len(self._logged) >= _MAX_LOGGED:
            return
        self._logged.add(found.namespace)
        _log.warning(
            "owner_chain_cut", namespace=found.namespace, kind=found.kind, name=found.name, levels=MAX_DEPTH
        )

    def _leave(self, root: str, pod: str) -> None:
        members = self._members.get(root)
        if members is not None:
            members.pop(pod, None)
            if not members:
                del self._members[root]

    def _forget_oldest(self, root: str) -> set[str]:
        gone = [uid for uid in self._members[root] if uid in self._gone]
        touched: set[str] = set()
        for uid in gone[:-KEPT_GONE_PODS]:
            if uid not in self._children:
                above = self._parent.get(uid)
                touched |= self._remove(uid)
                if above is not None:
                    touched |= self._prune(above)
        return touched

    def _prune(self, uid: str) -> set[str]:
        """Remove a deleted owner without children, and deleted owners above it that lose their last child.

        The top of a chain stays until its workload is forgotten.
        """
        touched: set[str] = set()
        while uid in self._gone and uid not in self._children and (above := self._parent.get(uid)):
            touched |= self._remove(uid)
            uid = above
        return touched

    def _remove(self, uid: str) -> set[str]:
        """Remove an object; what referred to it refers to an unread owner then."""
        self._unlink(uid, self._reference(uid))
        if (pod := self.pods.pop(uid, None)) is not None:
            self._unname(pod)
            self._leave(self._root.pop(uid), uid)
        self.owners.pop(uid, None)
        self.moved.discard(uid)
        self._queued.discard(uid)
        self._gone.pop(uid, None)
        touched: set[str] = set()
        for child in list(self._children.get(uid, ())):
            reference = self._reference(child)
            touched |= self._link(child, reference, reference)
        return touched

    def _unname(self, pod: FleetPod) -> None:
        if self._uids_by_name.get(_name(pod)) == pod.uid:
            del self._uids_by_name[_name(pod)]


def _moment(entry: tuple[float, QueueEntry]) -> float:
    return entry[0]


def _identity(found: FleetOwner | FleetPod) -> tuple[str, str, str]:
    return found.kind, found.name, found.namespace


def _counts(reference: OwnerRef, child: FleetOwner | FleetPod, owner: FleetOwner | FleetPod) -> bool:
    if child.source != "k8s":  # users write references in Kubernetes only
        return owner.source == child.source
    named = (owner.source, owner.kind, owner.name) == ("k8s", reference.kind, reference.name)
    return named and owner.namespace in (child.namespace, "")


def _reference(found: FleetOwner | FleetPod | None) -> OwnerRef | None:
    return found.owner if isinstance(found, FleetPod) else found.parent if found is not None else None


def _name(pod: FleetPod) -> tuple[str, str]:
    return (pod.node, f"job {pod.alias}") if pod.alias else (pod.namespace, pod.name)
