"""What pods have and had of the GPUs, by namespace, from the ledger.

It follows the ledger while there are GpuQueues. Ended allocations are kept until the server has accounted for their
time.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.gpu_requests import profile_share
from gpufleet.kubernetes.objects import Pod
from gpufleet.model.gpu_models import UNKNOWN_MODEL, canonical_model
from gpufleet.placement.allocation import Allocation
from gpufleet.queueing.shares.decay import Span
from gpufleet.scheduler.state import Ledger
from gpufleet.scheduler.state.holders import holder_key, uid_of, unit_of

MOST_ENDED = 20_000
"""Ended allocations of a namespace that are kept while the server does not answer; the oldest are dropped."""


class Held(NamedTuple):
    """The GPUs of a pod on one node."""

    uid: str
    namespace: str
    gpus: dict[str, int]
    since: float
    counted_to: float = float("-inf")
    """Until when its use is among the ended allocations: the pod had other GPUs before."""


@dataclass
class NamespaceUse:
    """What the pods of a namespace have, in thousandths by model, and a number that grows with every change."""

    gpus: Counter[str]
    version: int = 0


class HeldGpus:
    """Follows the allocations of the ledger."""

    def __init__(self, ledger: Ledger, timing: Timing) -> None:
        self._ledger = ledger
        self._timing = timing
        self._held: dict[str, Held] = {}
        self._by_namespace: dict[str, set[str]] = {}
        self.namespaces: dict[str, NamespaceUse] = {}
        self._ended: dict[str, deque[Span]] = {}
        self.changes = 0
        """Grows with every change."""
        self._unknown: set[str] = set()
        """What has GPUs of a model that was not reported yet."""

    def follow(self) -> None:
        """Count what is allocated now, and every change from now on."""
        if self._ledger.on_allocation is not None:
            return
        self._ledger.on_allocation = self._changed
        for key, allocation in list(self._ledger.cluster.allocations.items()):
            if not unit_of(key):
                self._changed(uid_of(key), allocation.node, allocation)

    def read_models(self) -> None:
        """Read the models of GPUs again that were not known before."""
        for key in list(self._unknown):
            allocation = self._ledger.cluster.allocations.get(key)
            if allocation is not None:
                self._changed(uid_of(key), allocation.node, allocation)

    def of(self, namespace: str) -> list[Held]:
        """Return what the pods of a namespace have."""
        return [self._held[key] for key in self._by_namespace.get(namespace, ())]

    def of_pod(self, uid: str) -> Counter[str]:
        """Return what a pod has, also by holds, by model."""
        found: Counter[str] = Counter()
        hold = self._ledger.holds.get(uid)
        for node in {*self._ledger.held_by(uid), *([hold.fits.node] if hold else [])}:
            if (held := self._held.get(holder_key(uid, node))) is not None:
                found.update(held.gpus)
        return found

    def spans(self, counts: Callable[[str], bool] = lambda namespace: True) -> Iterator[Span]:
        """Yield what bound pods have and had, of the namespaces that count."""
        for namespace, ended in self._ended.items():
            if counts(namespace):
                yield from ended
        for namespace in self.namespaces:
            for held in self.of(namespace) if counts(namespace) else ():
                pod = self._ledger.pods.get(held.uid)
                if pod is not None and pod.spec.node_name:
                    yield from _spans(held, max(self.started(held, pod), held.counted_to), None)

    def forget(self, until: float) -> None:
        """Forget allocations that ended before the server's reading."""
        for namespace, ended in list(self._ended.items()):
            kept = [span for span in ended if (span.end or 0.0) > until]
            self._ended[namespace] = deque(kept, MOST_ENDED)
            if not kept:
                del self._ended[namespace]

    def started(self, held: Held, pod: Pod) -> float:
        """Return when a pod began to use its GPUs."""
        return pod.status.start_time.timestamp() if pod.status.start_time is not None else held.since

    def _changed(self, uid: str, node: str, after: Allocation | None) -> None:
        key, now = holder_key(uid, node), self._timing.now().timestamp()
        self.changes += 1
        before = self._held.pop(key, None)
        self._unknown.discard(key)
        if before is not None:
            self._by_namespace[before.namespace].discard(key)
            self._count(before, -1)
        held = self._read(uid, after, before.since if before is not None else now) if after else None
        if held is not None and before is not None:
            held = held._replace(counted_to=before.counted_to)
        if held is not None:
            self._held[key] = held
            self._by_namespace.setdefault(held.namespace, set()).add(key)
            self._count(held, 1)
            if UNKNOWN_MODEL in held.gpus:
                self._unknown.add(key)
        if before is not None and (held is None or sum(held.gpus.values()) != sum(before.gpus.values())):
            self._end(before, now)
            if held is not None:
                self._held[key] = held._replace(counted_to=now)

    def _end(self, held: Held, now: float) -> None:
        pod = self._ledger.pods.get(held.uid)
        if pod is None or pod.spec.node_name:
            start = max(held.since if pod is None else self.started(held, pod), held.counted_to)
            ended = self._ended.setdefault(held.namespace, deque(maxlen=MOST_ENDED))
            ended.extend(_spans(held, start, now))

    def _count(self, held: Held, sign: int) -> None:
        use = self.namespaces.setdefault(held.namespace, NamespaceUse(Counter()))
        use.version += 1
        for model, milli in held.gpus.items():
            use.gpus[model] += sign * milli
            if not use.gpus[model]:
                del use.gpus[model]

    def _read(self, uid: str, allocation: Allocation, since: float) -> Held | None:
        """Return what a pod has; None for devices that others have."""
        pod = self._ledger.pods.get(uid)
        if pod is not None:
            namespace = pod.metadata.namespace
        else:
            holders = (each for gpus in self._ledger.leases_of(uid).values() for each in gpus.values())
            namespace = next((holder.namespace for holder in holders if holder.namespace), "")
        if not namespace:
            return None
        gpus: Counter[str] = Counter()
        for gpu in allocation.gpus:
            gpus[self._model(allocation.node, gpu)] += allocation.milli
        for gpu, instance in allocation.instances:
            gpus[self._model(allocation.node, gpu)] += self._instance_milli(allocation.node, gpu, instance)
        return Held(uid, namespace, dict(gpus), since)

    def _model(self, node: str, gpu: int) -> str:
        device = self._ledger.device(node, gpu)
        return canonical_model(device.model) if device is not None and device.model else UNKNOWN_MODEL

    def _instance_milli(self, node: str, gpu: int, instance: str) -> int:
        device = self._ledger.device(node, gpu)
        found = (each.profile for each in device.mig_instances if str(each.id) == instance) if device else ()
        return mig_milli(next(iter(found), ""))


def mig_milli(profile: str) -> int:
    """Return how much of a GPU an instance of a MIG profile is, in thousandths; the smallest if it is unknown."""
    return round(1000 * profile_share(profile or "1g."))


def _spans(held: Held, start: float, end: float | None) -> Iterator[Span]:
    for model, milli in held.gpus.items():
        yield Span(held.namespace, model, milli, start, end)
