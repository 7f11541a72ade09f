"""Find GPUs that two holders have, such as a claim of ours and one that kube-scheduler allocated from another class.

Neither the API server nor kube-scheduler nor the kubelet prevents that. Ownership does (docs/delivery.md): device
taints or node pools. An overlap is logged, counted, and recorded as an event on the pods of both holders. If one of
the allocations is ours and no pod uses it yet, `ClaimAllocator` clears it.
"""

from collections.abc import Iterable, Mapping

from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement.request import WHOLE
from gpufleet.runtime.logs import get_logger
from gpufleet.scheduler.claim_status import ClaimStatuses
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.state import Ledger

_log = get_logger("scheduler")

Place = tuple[str, int]
"""A node and the id of a GPU."""


class Overlaps:
    """The GPUs that are allocated twice; `check` the places that have changed."""

    def __init__(self, ledger: Ledger, statuses: ClaimStatuses, metrics: SchedulerMetrics) -> None:
        self._ledger = ledger
        self._statuses = statuses
        self._metrics = metrics
        self._known: dict[Place, frozenset[str]] = {}

    def holders(self) -> set[str]:
        """Return the holders of all GPUs that are allocated twice."""
        return {holder for holders in self._known.values() for holder in holders}

    def check(self, places: Iterable[Place]) -> None:
        """Look at GPUs whose holders have changed; report new overlaps."""
        for place in set(places):
            holders = self._ledger.holders(*place)
            if not _exceeds(holders):
                self._known.pop(place, None)
                continue
            if self._known.get(place) != frozenset(holders):
                self._known[place] = frozenset(holders)
                self._report(place, holders)
        self._metrics.overlaps.set(len(self._known))

    def _report(self, place: Place, holders: Mapping[str, LeaseHolder]) -> None:
        node, gpu = place
        names = {holder: self._name(holder, entry) for holder, entry in holders.items()}
        _log.error("gpu_allocated_twice", node=node, gpu=gpu, holders=sorted(names.values()))
        for holder in holders:
            others = ", ".join(sorted(name for other, name in names.items() if other != holder))
            note = f"GPU {gpu} of {node} is also allocated to {others}"
            for pod in self._pods(holder, holders[holder]):
                self._statuses.record_event(pod, "GpuAllocatedTwice", note, "Warning")

    def _name(self, holder: str, entry: LeaseHolder) -> str:
        pods = self._pods(holder, entry)
        if pods:
            return ", ".join(f"pod {pod.metadata.namespace}/{pod.metadata.name}" for pod in pods)
        return f"ResourceClaim {entry.namespace}/{entry.claim}" if entry.claim else f"holder {holder}"

    def _pods(self, holder: str, entry: LeaseHolder) -> list[Pod]:
        if (pod := self._ledger.pods.get(holder)) is not None:
            return [pod]
        claim = self._ledger.resource_claims.get((entry.namespace, entry.claim))
        found = (self._ledger.pods.get(uid) for uid in claim.object.pod_uids) if claim else iter(())
        return [pod for pod in found if pod is not None]


def _exceeds(holders: Mapping[str, LeaseHolder]) -> bool:
    """Return whether the holders have more of a GPU than there is."""
    if len(holders) < 2:
        return False
    instances = [each for holder in holders.values() for each in holder.instances]
    milli = sum(holder.milli for holder in holders.values())
    return milli > WHOLE or len(set(instances)) < len(instances) or bool(instances and milli)
