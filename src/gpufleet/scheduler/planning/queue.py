"""The queue of units that wait for GPUs: pods and whole gangs, by priority, then by age.

With GpuQueues, the rank of a unit among the units of all GpuQueues comes first (`shares/order.py`), so priority and
age decide between the units of one GpuQueue.

A pod without a gang enters the queue when its scheduler asks for it, or at once if it is bound directly
(`direct_binding.py`), a gang when its first member exists. A unit whose plan failed (its pods were not bound in time) waits exponentially longer before
it is planned again, and holds nothing meanwhile. Pods behind scheduling gates of others, such as
Kueue's, are not planned.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.annotations import GANG_GATE
from gpufleet.kubernetes.client.timing import Backoff
from gpufleet.kubernetes.objects import Pod
from gpufleet.queueing.shares.order import FIRST, WaitingUnit
from gpufleet.scheduler.planning.plan import Decision, Reservation, Waiting
from gpufleet.scheduler.queues.gpu_queues import GpuQueues, milli_of
from gpufleet.scheduler.state import valid_request
from gpufleet.scheduler.state.gang_identity import Gang
from gpufleet.scheduler.state.ledger import Ledger

BACKOFF = Backoff(initial=2.0, maximum=300.0)
"""How long a unit waits after its plan has failed."""

Order = tuple[int, float, int, str, str, str]
"""The rank between GpuQueues, which is the same for all without them, then priority, age and name."""


@dataclass(eq=False)
class Entry:
    """A unit in the queue and what is known about it."""

    key: str
    name: str
    order: Order
    pod: Pod
    """The pod, or the oldest member of the gang."""
    gang: Gang | None = None
    decision: Decision | None = None
    reservation: Reservation | None = None
    unreservable: int = -1
    """The value of `Ledger.freed` when no GPUs could be reserved for the unit."""
    planned: int = -1
    """The value of `Ledger.freed` when the unit was planned."""
    milli: int = 0
    """The GPUs that the unit requests, in thousandths; counted only with GpuQueues."""
    reclaims: str = ""
    """The GpuQueue for which borrowed GPUs are reclaimed, if pods were evicted for that."""
    members: frozenset[str] = frozenset()
    """The members that were planned, as far as they exist."""
    asks: tuple[tuple[str, float], ...] | None = None
    """What a pod requests besides GPUs, once it was needed."""
    told_at: float = float("-inf")
    """When the last decision was reported."""
    evicted_at: float = float("-inf")
    """When pods were last evicted for the unit."""
    failures: int = 0
    retry_at: float = float("-inf")
    again_at: float = float("inf")
    """When the unit is planned again even if nothing has become free."""
    excluded: dict[str, frozenset[str]] = field(default_factory=dict)
    """Nodes that kube-scheduler did not offer for a pod although nothing known here excludes them, by UID."""

    @property
    def is_guaranteed(self) -> bool:
        """Return whether the unit is inside the guarantee of its GpuQueue, and no unit ahead waits for that."""
        return self.order[0] == FIRST[0]

    @property
    def reason(self) -> str:
        """Return why the unit waits, or an empty string."""
        return self.decision.reason if isinstance(self.decision, Waiting) else ""


class Queue:
    """The waiting units; iterate in order."""

    def __init__(self, ledger: Ledger, timing: Timing, gpu_queues: GpuQueues) -> None:
        self._ledger = ledger
        self._timing = timing
        self._gpu_queues = gpu_queues
        self._entries: dict[str, Entry] = {}
        self._sorted: list[Entry] = []

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._sorted)

    def __len__(self) -> int:
        return len(self._sorted)

    def get(self, key: str) -> Entry | None:
        """Return an entry by its key."""
        return self._entries.get(key)

    def of_pod(self, pod: Pod) -> Entry | None:
        """Return the entry of a pod: its own, or its gang's."""
        if (entry := self._entries.get(pod.metadata.uid)) is not None:
            return entry
        gang = self._ledger.gangs.of(pod)
        return self._entries.get(gang_key(gang)) if gang is not None else None

    def put_pod(self, pod: Pod) -> Entry:
        """Return the entry of a pod that is scheduled alone, added if it is new."""
        meta = pod.metadata
        age = (-priority_of(pod), str(meta.creation_timestamp), meta.namespace, meta.name)
        return self._put(meta.uid, f"{meta.namespace}/{meta.name}", age, pod, None)

    def put_gang(self, gang: Gang) -> Entry | None:
        """Return the entry of a gang, added if it is new; None if it has no members that wait."""
        key = gang_key(gang)
        members = self._ledger.gangs.members(gang)
        if not any(not pod.spec.node_name for pod in members):
            self.drop(key)
            return None
        first = members[0]
        created = str(first.metadata.creation_timestamp)
        age = (-min(map(priority_of, members)), created, gang.namespace, gang.name)
        entry = self._put(key, f"gang {gang}", age, first, gang)
        uids = frozenset(pod.metadata.uid for pod in members)
        if uids != entry.members:
            # Other members, such as those of a restarted job: earlier failures say nothing about them.
            entry.members, entry.failures, entry.retry_at = uids, 0, float("-inf")
            entry.milli = 0
        entry.planned = -1
        return entry

    def drop(self, key: str) -> Entry | None:
        """Remove an entry with its reservation."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._remove_sorted(entry)
            self._ledger.reservations.drop(key)
        return entry

    def failed(self, entry: Entry) -> None:
        """Let a unit wait longer after its plan has failed."""
        entry.failures += 1
        entry.retry_at = self._timing.monotonic() + BACKOFF.delay(entry.failures, 1.0)
        entry.decision, entry.planned = None, -1
        self.unreserve(entry)

    def unreserve(self, entry: Entry) -> None:
        """Give up the reservation of a unit."""
        entry.reservation = None
        self._ledger.reservations.drop(entry.key)

    def due(self, entry: Entry) -> bool:
        """Return whether the unit must be planned: something has changed since it was planned, or it asked for that."""
        now = self._timing.monotonic()
        return (entry.planned < self._ledger.freed or entry.again_at <= now) and entry.retry_at <= now

    def ahead(self, entry: Entry) -> Sequence[Entry]:
        """Return the entries ahead of this one."""
        return self._sorted[: self._position(entry)]

    def reserving(self) -> list[Entry]:
        """Return the entries with reservations, in order."""
        found = (self._entries.get(key) for key in self._ledger.reservations)
        return sorted((entry for entry in found if entry is not None), key=_ORDER)

    def rank(self) -> None:
        """Sort the units by the current ranks between GpuQueues.

        Units that overtake a reservation are due: they may use its GPUs, or get one themselves.
        """
        reserving = self.reserving()
        behind = self._reservations_ahead(reserving)
        by_queue: dict[str, list[WaitingUnit]] = {}
        for entry in sorted(self._sorted, key=lambda entry: entry.order[2:]):
            if (name := self._gpu_queues.queue_of(entry.pod.metadata.namespace)) is not None:
                entry.milli = entry.milli or self._requested(entry)
                by_queue.setdefault(name, []).append(WaitingUnit(entry.key, entry.milli))
        ranks = self._gpu_queues.ranks(by_queue, self._holding())
        for entry in self._sorted:
            before = entry.is_guaranteed
            entry.order = (*ranks.get(entry.key, FIRST), *entry.order[2:])
            if entry.is_guaranteed and not before:
                entry.planned = -1
        self._sorted.sort(key=_ORDER)
        for entry, ahead in self._reservations_ahead(reserving).items():
            if behind.get(entry, {*reserving}) - ahead - {entry}:
                entry.planned = -1

    def _reservations_ahead(self, reserving: Sequence[Entry]) -> dict[Entry, set[Entry]]:
        """Return the reserving units ahead of each unit; units behind all of them are left out."""
        found: dict[Entry, set[Entry]] = {}
        seen, left = set[Entry](), {*reserving}
        for entry in self._sorted if left else ():
            found[entry] = seen.copy()
            if entry in left:
                seen.add(entry)
                if len(seen) == len(left):
                    break
        return found

    def _holding(self) -> list[Pod]:
        """Return the pods in the queue for which GPUs are held."""
        pods = (self._ledger.pods.get(uid) for uid in self._ledger.holds)
        return [pod for pod in pods if pod is not None and self.of_pod(pod) is not None]

    def _requested(self, entry: Entry) -> int:
        """Return the GPUs that the unit requests, in thousandths."""
        pods = self._ledger.gangs.members(entry.gang) if entry.gang is not None else [entry.pod]
        claims = (self._ledger.claim_of(pod) for pod in pods if not pod.spec.node_name)
        requests = (valid_request(claim) for claim in claims if claim is not None)
        return milli_of(request for request in requests if request is not None)

    def _put(self, key: str, name: str, age: tuple[int, str, str, str], pod: Pod, gang: Gang | None) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Entry(key, name, (*FIRST, *age), pod, gang)
            if self._gpu_queues.active:
                entry.milli = self._requested(entry)
                entry.order = (*self._gpu_queues.new_rank(pod, entry.milli), *age)
            insort(self._sorted, entry, key=_ORDER)
        elif entry.order[2:] != age:
            self._remove_sorted(entry)
            entry.order = (*entry.order[:2], *age)
            insort(self._sorted, entry, key=_ORDER)
        entry.pod = pod
        return entry

    def _position(self, entry: Entry) -> int:
        at = bisect_left(self._sorted, entry.order, key=_ORDER)
        while self._sorted[at] is not entry:
            at += 1
        return at

    def _remove_sorted(self, entry: Entry) -> None:
        del self._sorted[self._position(entry)]


_ORDER = attrgetter("order")


def gang_key(gang: Gang) -> str:
    """Return the key of a gang's entry; it differs from every UID."""
    return f"gang/{'/'.join(gang)}"


def priority_of(pod: Pod) -> int:
    """Return the pod's priority, 0 by default."""
    return pod.spec.priority or 0


def foreign_gates(pod: Pod) -> list[str]:
    """Return the scheduling gates of the pod that others must remove."""
    return [gate.name for gate in pod.spec.scheduling_gates if gate.name != GANG_GATE]
