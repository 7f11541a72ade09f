"""Owners and pods by uid, and the chains of controller references between them.

A workload is the top of a chain. Any link may be missing (no permission to read its kind, deleted
before its pods); then the reference to it is used instead.

A deleted object is kept as `gone` while other objects of its workload exist. Otherwise the last pods
of a ReplicaSet that was garbage-collected first would look like workloads of their own. A deleted
object with nothing below it is removed immediately: a CronJob lives for years while its Jobs come
and go. Cycles, which Kubernetes does not forbid, end at the smallest uid of the cycle.
"""

import msgspec

from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, QueueEntry

KEPT_GONE_PODS = 200
"""Deleted pods kept per existing workload; older ones are only in the store."""


class Ownership:
    """The owner chains of one cluster.

    Every change returns the uids of the workloads that it affects.
    """

    def __init__(self) -> None:
        self.pods: dict[str, FleetPod] = {}
        self.owners: dict[str, FleetOwner] = {}
        self._gone: dict[str, None] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._members: dict[str, dict[str, None]] = {}
        self._root: dict[str, str] = {}
        self._uids_by_name: dict[tuple[str, str], str] = {}
        self._queued: set[str] = set()
        """The uids of queue entries, which tell about a workload and are no part of what exists of it."""

    def put_owner(self, owner: FleetOwner) -> set[str]:
        """Add or replace an owner."""
        before = self.owners.get(owner.uid)
        self.owners[owner.uid] = owner
        self._gone.pop(owner.uid, None)
        if owner.queued is not None:
            self._queued.add(owner.uid)
        touched = {self.root_of(owner.uid)}
        if before is None or before.parent != owner.parent:
            self._link(owner.uid, before.parent if before else None, owner.parent)
            touched |= self._reassign_pods(owner.uid)
        return touched

    def put_pod(self, pod: FleetPod) -> set[str]:
        """Add or replace a pod."""
        before = self.pods.get(pod.uid)
        self.pods[pod.uid] = pod
        self._gone.pop(pod.uid, None)
        if before is not None and _name(before) != _name(pod):
            self._unname(before)
        self._uids_by_name[_name(pod)] = pod.uid
        if before is None or before.owner != pod.owner:
            self._link(pod.uid, before.owner if before else None, pod.owner)
            return self._reassign_pods(pod.uid)
        return {self._root[pod.uid]}

    def drop_owner(self, uid: str) -> set[str]:
        """Mark a deleted owner as gone."""
        if uid not in self.owners:
            return set()
        self._gone[uid] = None
        root = self.root_of(uid)
        self._prune(uid)
        return {root}

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
        self._forget_oldest(root)
        return {root}

    def uid_of(self, namespace: str, name: str) -> str | None:
        """Return the pod of that name, if it exists."""
        return self._uids_by_name.get((namespace, name))

    def uid_of_job(self, node: str, alias: str) -> str | None:
        """Return the pod of a Slurm job or container on a node, if it exists."""
        return self._uids_by_name.get((node, f"job {alias}"))

    def is_gone(self, uid: str) -> bool:
        """Return whether the object was deleted."""
        return uid in self._gone

    def parent_of(self, uid: str) -> OwnerRef | None:
        """Return the controller that the object refers to."""
        if pod := self.pods.get(uid):
            return pod.owner
        owner = self.owners.get(uid)
        return owner.parent if owner else None

    def root_of(self, uid: str) -> str:
        """Return the uid of the workload that the object belongs to."""
        seen = [uid]
        while (ref := self.parent_of(seen[-1])) is not None:
            if ref.uid in seen:
                return min(seen[seen.index(ref.uid) :])
            seen.append(ref.uid)
        return seen[-1]

    def pods_of(self, root: str) -> list[FleetPod]:
        """Return the pods of a workload, including deleted ones that are kept."""
        return [self.pods[uid] for uid in self._members.get(root, ())]

    def live_pods_of(self, root: str) -> list[FleetPod]:
        """Return the pods of a workload that are not deleted."""
        return [self.pods[uid] for uid in self._members.get(root, ()) if uid not in self._gone]

    def children_of(self, uid: str) -> list[str]:
        """Return the uids of the objects whose controller this is."""
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
        for child in self._children.get(uid, ()):
            if (ref := self.parent_of(child)) is not None:
                return ref
        return None

    def exists(self, root: str) -> bool:
        """Return whether any object of the workload still exists."""
        return any(
            uid not in self._gone
            for uid in self._tree(root)
            if (uid in self.owners and uid not in self._queued) or uid in self.pods
        )

    def forget(self, root: str) -> None:
        """Remove a workload with everything below it."""
        for uid in self._tree(root):
            self._remove(uid)
        self._members.pop(root, None)

    def _tree(self, root: str) -> list[str]:
        found, stack = {root: None}, [root]
        while stack:
            for child in self._children.get(stack.pop(), ()):
                if child not in found:
                    found[child] = None
                    stack.append(child)
        return list(found)

    def _link(self, uid: str, old: OwnerRef | None, new: OwnerRef | None) -> None:
        if old is not None and (siblings := self._children.get(old.uid)) is not None:
            siblings.pop(uid, None)
            if not siblings:
                del self._children[old.uid]
        if new is not None:
            self._children.setdefault(new.uid, {})[uid] = None

    def _reassign_pods(self, uid: str) -> set[str]:
        """Recompute the workload of every pod below `uid`."""
        touched = set()
        for below in self._tree(uid):
            if below not in self.pods:
                continue
            old, new = self._root.get(below), self.root_of(below)
            touched.add(new)
            if old == new:
                continue
            if old is not None:
                touched.add(old)
                self._leave(old, below)
            self._root[below] = new
            self._members.setdefault(new, {})[below] = None
        return touched

    def _leave(self, root: str, pod: str) -> None:
        members = self._members.get(root)
        if members is not None:
            members.pop(pod, None)
            if not members:
                del self._members[root]

    def _forget_oldest(self, root: str) -> None:
        gone = [uid for uid in self._members[root] if uid in self._gone]
        for uid in gone[:-KEPT_GONE_PODS]:
            above = self.parent_of(uid)
            self._remove(uid)
            if above is not None:
                self._prune(above.uid)

    def _prune(self, uid: str) -> None:
        """Remove a deleted owner without children, and deleted owners above it that lose their last child.

        The top of a chain stays until its workload is forgotten.
        """
        while uid in self._gone and uid not in self._children and (above := self.parent_of(uid)) is not None:
            self._remove(uid)
            uid = above.uid

    def _remove(self, uid: str) -> None:
        ref = self.parent_of(uid)
        self._link(uid, ref, None)
        if (pod := self.pods.pop(uid, None)) is not None:
            self._unname(pod)
            self._leave(self._root.pop(uid), uid)
        self.owners.pop(uid, None)
        self._queued.discard(uid)
        self._gone.pop(uid, None)

    def _unname(self, pod: FleetPod) -> None:
        if self._uids_by_name.get(_name(pod)) == pod.uid:
            del self._uids_by_name[_name(pod)]


def _moment(entry: tuple[float, QueueEntry]) -> float:
    return entry[0]


def _name(pod: FleetPod) -> tuple[str, str]:
    return (pod.node, f"job {pod.alias}") if pod.alias else (pod.namespace, pod.name)
