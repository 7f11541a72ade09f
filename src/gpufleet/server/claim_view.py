"""Claims, leases and explanations of one cluster, from the caches that the server already watches.

`WatchedState` feeds the scheduler's own state from the reflectors of a `KubernetesSource`, so that
an explanation here is the one that the scheduler would give. It starts at the first question, since
most servers get none, and then applies every change. The command line has no reflectors: it lists
the objects once (`list_state`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpufleet.errors import NotFound, Unavailable
from gpufleet.kubernetes import (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    LEASES,
    NODES,
    POD_GROUPS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    CacheChange,
    KubeClient,
    Reflector,
    Resource,
    Selection,
)
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.cache import key_of
from gpufleet.kubernetes.client.errors import KubernetesRefused, ObjectNotFound
from gpufleet.kubernetes.client.resources import T
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.kueue import GROUP as KUEUE
from gpufleet.kubernetes.kueue import KueueWorkload
from gpufleet.kubernetes.leases import GpuLease, LeaseHolder
from gpufleet.kubernetes.objects import Pod
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.workload import QueueEntry
from gpufleet.scheduler.explain import Explanation, explain, explain_pod
from gpufleet.scheduler.state import Ledger
from gpufleet.sources.kubernetes import KubernetesSource, kind_of
from gpufleet.sources.kubernetes.kueue import claims_of, first_waiting, workload_resource

STEP = 200
"""Objects to apply before other requests get their turn: about 10 ms."""


@dataclass(frozen=True)
class ClaimState:
    """The scheduler's state of one cluster."""

    ledger: Ledger
    has_claims: bool
    """Whether the cluster has the GpuClaim CRD."""
    queued: Callable[[str, str], QueueEntry | None] = lambda namespace, claim: None
    """Returns the entry in Kueue of a job whose pods name a claim and may not start yet."""


class ClaimView:
    """Answers questions about the claims and leases of one cluster."""

    def __init__(self, read: Callable[[], Awaitable[ClaimState]]) -> None:
        self._read = read

    async def ledger(self) -> Ledger:
        """Return the scheduler's state of the cluster."""
        return (await self._read()).ledger

    async def claims(self) -> list[GpuClaim]:
        """Return all claims by namespace and name."""
        claims = (await self._read()).ledger.claims
        return [claims[key] for key in sorted(claims)]

    async def leases(self, namespaces: Namespaces = None) -> list[GpuLease]:
        """Return the GPU leases by node and GPU: all, or those of pods in `namespaces` without other holders."""
        ledger = (await self._read()).ledger
        leases: Iterable[GpuLease] = ledger.leases.values()
        if namespaces is not None:
            limited = (_limited(ledger, lease, namespaces) for lease in leases)
            leases = [lease for lease in limited if lease.holders]
        return sorted(leases, key=lambda lease: (lease.node, lease.gpu))

    async def explain(self, namespace: str, claim: str, namespaces: Namespaces = None) -> Explanation:
        """Explain why a claim waits, without the names of pods in other namespaces than `namespaces`.

        Raise NotFound if the claim does not exist or is not in `namespaces`.
        """
        state = await self._state_with_claims()
        if (namespace, claim) not in state.ledger.claims or not is_visible(namespaces, namespace):
            raise NotFound(f"there is no GpuClaim {claim} in namespace {namespace}")
        queued = _queued(state, namespace, claim)
        return queued or explain(state.ledger, namespace, claim, namespaces=namespaces)

    async def explain_pod(self, namespace: str, name: str, namespaces: Namespaces = None) -> Explanation:
        """Explain why a pod waits; raise NotFound if it does not exist or is not in `namespaces`."""
        state = await self._state_with_claims()
        pods = state.ledger.pods.values() if is_visible(namespaces, namespace) else ()
        for pod in pods:
            if (pod.metadata.namespace, pod.metadata.name) == (namespace, name):
                claim = pod.metadata.annotations.get(CLAIM, "")
                queued = _queued(state, namespace, claim) if _is_gated(pod) else None
                return queued or explain_pod(state.ledger, pod, namespaces)
        raise NotFound(f"there is no pod {name} in namespace {namespace}")

    async def _state_with_claims(self) -> ClaimState:
        state = await self._read()
        if not state.has_claims:
            raise NotFound("this cluster has no GpuClaims: the CRDs of chart gpu-scheduler are not installed")
        return state


def _queued(state: ClaimState, namespace: str, claim: str) -> Explanation | None:
    """Return an explanation if the pods of a claim wait for Kueue: they are gated, or not created yet."""
    if not all(_is_gated(pod) for pod in state.ledger.pods_of(namespace, claim) if not pod.finished):
        return None
    entry = state.queued(namespace, claim)
    if entry is None:
        return None
    remedy = f"see kubectl describe localqueue {entry.queue} -n {namespace}: Kueue's quota decides"
    return Explanation(True, entry.sentence, {}, (remedy,))


def _is_gated(pod: Pod) -> bool:
    return any(gate.name.startswith(f"{KUEUE}/") for gate in pod.spec.scheduling_gates)


def _limited(ledger: Ledger, lease: GpuLease, namespaces: frozenset[str]) -> GpuLease:
    """Return a lease with its holders in `namespaces`; the pod tells the namespace that a lease lacks."""

    def namespace_of(uid: str, holder: LeaseHolder) -> str:
        pod = ledger.pods.get(uid)
        return pod.metadata.namespace if pod is not None else holder.namespace

    holders = {
        uid: holder for uid, holder in lease.holders.items() if namespace_of(uid, holder) in namespaces
    }
    return replace(lease, holders=holders)


class WatchedState:
    """The scheduler's state, fed by the reflectors of a source."""

    def __init__(self, source: KubernetesSource) -> None:
        self._source = source
        self._ledger = Ledger()
        self._backlog: deque[tuple[Callable[[CacheChange[Any]], None], Sequence[CacheChange[Any]]]] = deque()
        self._catching_up: asyncio.Task[None] | None = None
        self._current = False

    async def read(self) -> ClaimState:
        """Return the state of now; raise Unavailable if the account may not read claims or leases."""
        for reflector in (self._source.leases, self._source.claims):
            if reflector.state.forbidden and not reflector.state.synced:
                raise Unavailable(self._source.states()[kind_of(reflector.resource)].error)
        if self._catching_up is None:
            self._catching_up = asyncio.create_task(self._catch_up(), name="claim view")
        await asyncio.shield(self._catching_up)
        return ClaimState(self._ledger, self._source.claims.state.synced, self._source.kueue.waiting_for)

    async def _catch_up(self) -> None:
        """Take over the caches in steps; changes that arrive meanwhile queue behind."""
        ledger, source = self._ledger, self._source
        self._follow(source.nodes, ledger.put_node, lambda node: ledger.drop_node(node.metadata.name))
        self._follow(
            source.leases,
            ledger.put_lease,
            lambda lease: ledger.drop_lease(lease.metadata.name, lease.metadata.uid),
        )
        self._follow(source.pods, ledger.put_pod, lambda pod: ledger.drop_pod(pod.metadata.uid))
        self._follow(
            source.node_statuses, ledger.put_report, lambda status: ledger.drop_report(status.spec.node_name)
        )
        self._follow(source.claims, ledger.put_claim, lambda claim: ledger.drop_claim(key_of(claim)))
        self._follow(
            source.pod_groups, ledger.gangs.put_group, lambda group: ledger.gangs.drop_group(key_of(group))
        )
        self._follow(source.resource_slices, ledger.put_slice, ledger.drop_slice)
        self._follow(source.resource_claims, ledger.put_resource_claim, ledger.drop_resource_claim)
        while self._backlog:
            apply, changes = self._backlog.popleft()
            for start in range(0, len(changes), STEP):
                for change in changes[start : start + STEP]:
                    apply(change)
                await asyncio.sleep(0)
        self._current = True

    def _follow(
        self, reflector: Reflector[T], put: Callable[[T], object], drop: Callable[[T], object]
    ) -> None:
        def apply(change: CacheChange[T]) -> None:
            if change.after is None:
                drop(change.object)
            else:
                put(change.after)

        def on_changes(changes: Sequence[CacheChange[T]]) -> None:
            if not self._current:
                self._backlog.append((apply, changes))
                return
            for change in changes:
                apply(change)

        reflector.subscribe(on_changes)


async def list_state(client: KubeClient, lease_namespace: str) -> ClaimState:
    """List the objects once; a cluster without our CRDs has no claims and no GPU reports."""
    ledger = Ledger()
    nodes, statuses, leases, claims, pods = await asyncio.gather(
        client.list(NODES),
        _list_ours(client, GPU_NODE_STATUSES),
        client.list(LEASES, Selection(namespace=lease_namespace)),
        _list_ours(client, GPU_CLAIMS),
        client.list(PODS),
    )
    for node in nodes.items:
        ledger.put_node(node)
    for lease in leases.items:
        ledger.put_lease(lease)
    for pod in pods.items:
        ledger.put_pod(pod)
    for status in statuses or ():
        ledger.put_report(status)
    for claim in claims or ():
        ledger.put_claim(claim)
    try:
        for group in (await client.list(POD_GROUPS)).items:
            ledger.gangs.put_group(group)
    except KubernetesRefused:
        pass  # The PodGroup CRD is optional: an annotation of the claim can give the gang's size.
    try:
        for item in (await client.list(RESOURCE_SLICES)).items:
            ledger.put_slice(item)
        for resource_claim in (await client.list(RESOURCE_CLAIMS)).items:
            ledger.put_resource_claim(resource_claim)
    except KubernetesRefused:
        pass  # Served from Kubernetes 1.34.
    return ClaimState(ledger, claims is not None, await _list_queue(client, ledger))


async def _list_queue(client: KubeClient, ledger: Ledger) -> Callable[[str, str], QueueEntry | None]:
    """List Kueue's Workloads once; without Kueue, or the right to list them, no job is in a queue."""
    workloads: dict[tuple[str, str], list[KueueWorkload]] = {}
    resource = await workload_resource(client)
    if resource is not None:
        with contextlib.suppress(KubernetesRefused):
            for workload in (await client.list(resource)).items:
                for key in claims_of(workload):
                    workloads.setdefault(key, []).append(workload)
    return lambda namespace, claim: first_waiting(
        workloads.get((namespace, claim), ()), lambda *key: ledger.claims.get(key)
    )


async def _list_ours(client: KubeClient, resource: Resource[T]) -> Sequence[T] | None:
    """List all objects of a CRD of ours; return None if the cluster does not have it."""
    try:
        return (await client.list(resource)).items
    except ObjectNotFound:
        return None
