"""Claims, leases and explanations, read from a Kubernetes API when asked.

For people and dashboards: a question reads what it needs and builds the scheduler's own picture
from it, so that the answer is what the scheduler would say. Answers a moment old are kept, so
that a page that is open in many browsers costs the API server one list every few seconds.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gpufleet.errors import NotFound
from gpufleet.kubernetes import (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    LEASES,
    NODES,
    POD_GROUPS,
    PODS,
    KubeClient,
    Resource,
    Selection,
)
from gpufleet.kubernetes.client.errors import KubernetesRefused
from gpufleet.kubernetes.client.errors import ObjectNotFound as NoSuchKind
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.leases import GpuLease
from gpufleet.kubernetes.objects import KubeObject
from gpufleet.scheduler.explain import Explanation, explain, explain_pod
from gpufleet.scheduler.state import Ledger

FRESH = 2.0
"""Seconds that a picture is good for."""

T = TypeVar("T", bound=KubeObject)


@dataclass
class _Picture:
    ledger: Ledger
    has_claims: bool
    """Whether the cluster knows what a GpuClaim is."""
    read_at: float


class KubernetesClaimView:
    """Answers about claims and leases of one cluster."""

    def __init__(
        self, client: KubeClient, lease_namespace: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._namespace = lease_namespace
        self._clock = clock
        self._reading = asyncio.Lock()
        self._picture: _Picture | None = None

    async def claims(self) -> list[GpuClaim]:
        """All claims, by namespace and name."""
        ledger = (await self._look()).ledger
        return [ledger.claims[key] for key in sorted(ledger.claims)]

    async def leases(self) -> list[GpuLease]:
        """All leases of GPUs, by node and GPU."""
        ledger = (await self._look()).ledger
        return sorted(ledger.leases.values(), key=lambda lease: (lease.node, lease.gpu))

    async def explain(self, namespace: str, claim: str) -> Explanation:
        """Why a claim waits; NotFound if there is none of that name."""
        ledger = await self._ledger_with_claims()
        if (namespace, claim) not in ledger.claims:
            raise NotFound(f"there is no GpuClaim {claim} in namespace {namespace}")
        return explain(ledger, namespace, claim)

    async def explain_pod(self, namespace: str, name: str) -> Explanation:
        """Why a pod waits; NotFound if there is none of that name."""
        ledger = await self._ledger_with_claims()
        for pod in ledger.pods.values():
            if (pod.metadata.namespace, pod.metadata.name) == (namespace, name):
                return explain_pod(ledger, pod)
        raise NotFound(f"there is no pod {name} in namespace {namespace}")

    async def _ledger_with_claims(self) -> Ledger:
        picture = await self._look()
        if not picture.has_claims:
            raise NotFound("this cluster has no GpuClaims: the CRDs of chart gpu-scheduler are not installed")
        return picture.ledger

    async def _look(self) -> _Picture:
        """The picture as of now, or a moment ago."""
        async with self._reading:
            if self._picture is None or self._clock() - self._picture.read_at > FRESH:
                ledger, has_claims = await self._read()
                self._picture = _Picture(ledger, has_claims, self._clock())
            return self._picture

    async def _read(self) -> tuple[Ledger, bool]:
        """All there is; a cluster without our CRDs has no claims and no reports."""
        client, ledger = self._client, Ledger()
        nodes, reports, leases, claims, pods = await asyncio.gather(
            client.list(NODES),
            self._list_ours(GPU_NODE_STATUSES),
            client.list(LEASES, Selection(namespace=self._namespace)),
            self._list_ours(GPU_CLAIMS),
            client.list(PODS),
        )
        for node in nodes.items:
            ledger.put_node(node)
        for lease in leases.items:
            ledger.put_lease(lease)
        for pod in pods.items:
            ledger.put_pod(pod)
        for report in reports or ():
            ledger.put_report(report)
        for claim in claims or ():
            ledger.claims[claim.metadata.namespace, claim.metadata.name] = claim
        try:
            for group in (await client.list(POD_GROUPS)).items:
                ledger.groups[group.metadata.namespace, group.metadata.name] = group
        except KubernetesRefused:
            # The PodGroup CRD need not be there; claims then say the size of their gang.
            pass
        return ledger, claims is not None

    async def _list_ours(self, resource: Resource[T]) -> Sequence[T] | None:
        """All objects of a kind of ours; None where the cluster does not have it."""
        try:
            return (await self._client.list(resource)).items
        except NoSuchKind:
            return None
