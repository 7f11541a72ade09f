"""Follow Kueue's Workloads, so that a job in a queue shows its queue, whether it is admitted, and why not.

Kueue is optional. Its Workloads are watched as soon as a job or pod with the label of a queue is seen. A
Workload belongs to its job by its controller reference, as a pod does, so it appears in the job's hierarchy.
Its pod templates tell how many GPUs a suspended job asks for, which has no pods yet.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpufleet.errors import GpufleetError
from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import CacheChange, Discovery, KubeClient, Reflector, Resource, WatchTimings
from gpufleet.kubernetes.annotations import CLAIM, kept_annotations
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.gpu_requests import gpu_request
from gpufleet.kubernetes.kueue import GROUP, KIND, QUEUE_NAME, VERSIONS, KueueWorkload, PodSet
from gpufleet.kubernetes.objects import OwnerReference
from gpufleet.model.workload import FleetOwner, QueueEntry, QueueState
from gpufleet.runtime.logs import get_logger
from gpufleet.sources.kubernetes.claimed_gpus import claimed_request
from gpufleet.sources.kubernetes.pods import owner_ref

_log = get_logger("sources.kubernetes")

FindClaim = Callable[[str, str], GpuClaim | None]
"""Returns the claim of a name in a namespace."""


class KueueWorkloads:
    """Keeps the fleet's queue entries in sync; `run` it as a task."""

    def __init__(
        self,
        client: KubeClient,
        fleet: Fleet,
        claim: FindClaim,
        refer: Callable[[OwnerReference | None], None],
        *,
        timings: WatchTimings,
        retry: float,
    ) -> None:
        """`refer` is called with the controller of each Workload: its kind may not be watched yet."""
        self._client = client
        self._fleet = fleet
        self._claim = claim
        self._refer = refer
        self._timings = timings
        self._retry = retry
        self._noticed = asyncio.Event()
        self._by_claim: dict[tuple[str, str], dict[str, KueueWorkload]] = {}
        self.reflector: Reflector[KueueWorkload] | None = None

    def notice(self, labels: Mapping[str, str]) -> None:
        """Start to follow Workloads if the labels of a job or pod name a queue."""
        if QUEUE_NAME in labels:
            self._noticed.set()

    async def run(self) -> None:
        """Wait until Kueue is in use, then watch its Workloads until cancelled."""
        await self._noticed.wait()
        while self.reflector is None:
            self.reflector = await self._find()
            if self.reflector is None:
                await self._client.timing.sleep(self._retry)
        await self.reflector.run()

    def on_claim(self, namespace: str, name: str) -> None:
        """Update the Workloads whose pods name a changed claim."""
        for workload in self._by_claim.get((namespace, name), {}).values():
            self._put(workload)

    def waiting_for(self, namespace: str, claim: str) -> QueueEntry | None:
        """Return the entry of the oldest Workload that is not admitted and whose pods name the claim."""
        return first_waiting(self._by_claim.get((namespace, claim), {}).values(), self._claim)

    async def _find(self) -> Reflector[KueueWorkload] | None:
        """Return a reflector of Workloads; None if Kueue is not installed."""
        resource = await workload_resource(self._client)
        if resource is None:
            return None
        reflector = Reflector(self._client, resource, timings=self._timings)
        reflector.subscribe(self._on_workloads)
        return reflector

    def _on_workloads(self, changes: Sequence[CacheChange[KueueWorkload]]) -> None:
        for change in changes:
            before, after = change.before, change.after
            if before is not None:
                self._unindex(before)
                if after is None or after.metadata.uid != before.metadata.uid:
                    self._fleet.drop_owner(before.metadata.uid)
            if after is not None:
                for key in claims_of(after):
                    self._by_claim.setdefault(key, {})[after.metadata.uid] = after
                self._refer(after.metadata.controller)
                self._put(after)

    def _unindex(self, workload: KueueWorkload) -> None:
        for key in claims_of(workload):
            users = self._by_claim.get(key, {})
            users.pop(workload.metadata.uid, None)
            if not users:
                self._by_claim.pop(key, None)

    def _put(self, workload: KueueWorkload) -> None:
        assert self.reflector is not None
        meta = workload.metadata
        self._fleet.put_owner(
            FleetOwner(
                uid=meta.uid,
                kind=KIND,
                name=meta.name,
                namespace=meta.namespace,
                api_version=self.reflector.resource.api_version,
                parent=owner_ref(meta),
                labels=dict(meta.labels),
                annotations=kept_annotations(meta.annotations, self._client.annotations),
                created=_age(workload),
                queued=queue_entry(workload, self._claim),
            )
        )


async def workload_resource(client: KubeClient) -> Resource[KueueWorkload] | None:
    """Return Kueue's Workload in the newest version that the server has; None if Kueue is not installed."""
    discovery = Discovery(client)
    for version in VERSIONS:
        try:
            return await discovery.find(f"{GROUP}/{version}", KIND, KueueWorkload)
        except GpufleetError as error:
            _log.debug("kueue_unavailable", version=version, error=str(error))
    return None


def first_waiting(workloads: Iterable[KueueWorkload], claim: FindClaim) -> QueueEntry | None:
    """Return the entry of the oldest Workload that is not admitted."""
    entries = (queue_entry(workload, claim) for workload in sorted(workloads, key=_age))
    return next((entry for entry in entries if entry.waits), None)


def queue_entry(workload: KueueWorkload, claim: FindClaim) -> QueueEntry:
    """Return the queue of a Workload, how far its admission is, and why it waits."""
    state, reason = _state(workload)
    return QueueEntry(
        queue=workload.spec.queue_name,
        cluster_queue=workload.status.admission.cluster_queue if workload.status.admission else "",
        state=state,
        reason=reason,
        gpus=sum(_gpus(each, workload.metadata.namespace, claim) for each in workload.spec.pod_sets),
    )


def _state(workload: KueueWorkload) -> tuple[QueueState, str]:
    if workload.is_true("Finished"):
        return QueueState.FINISHED, ""
    if workload.is_true("Admitted"):
        return QueueState.ADMITTED, ""
    if workload.spec.active is False:
        return QueueState.INACTIVE, "the Workload is deactivated (spec.active is false)"
    if workload.is_true("QuotaReserved"):
        return QueueState.RESERVED, _unmet_checks(workload)
    found = workload.condition("QuotaReserved")
    return QueueState.QUEUED, (found.message or found.reason) if found else "Kueue has not considered it yet"


def _unmet_checks(workload: KueueWorkload) -> str:
    unmet = [
        f"{each.name} is {each.state}{f' ({each.message})' if each.message else ''}"
        for each in workload.status.admission_checks or ()
        if each.state != "Ready"
    ]
    return f"quota is reserved, admission checks: {', '.join(unmet)}" if unmet else "quota is reserved"


def _gpus(pods: PodSet, namespace: str, find: FindClaim) -> int:
    name = pods.template.metadata.annotations.get(CLAIM, "")
    claim = find(namespace, name) if name else None
    request = claimed_request(claim) if claim is not None else gpu_request(pods.template)
    return pods.count * request.gpus


def claims_of(workload: KueueWorkload) -> set[tuple[str, str]]:
    """Return the namespace and name of the claims that the pods of a Workload name."""
    names = {each.template.metadata.annotations.get(CLAIM, "") for each in workload.spec.pod_sets}
    return {(workload.metadata.namespace, name) for name in names if name}


def _age(workload: KueueWorkload) -> float:
    created = workload.metadata.creation_timestamp
    return created.timestamp() if created is not None else 0.0
