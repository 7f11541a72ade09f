"""Claims, leases and explanations, read from a Kubernetes API when asked.

For people and dashboards: a question reads what it needs and builds the scheduler's own picture
from it, so that the answer is what the scheduler would say. Answers a moment old are kept, so
that a page that is open in many browsers costs the API server one list every few seconds.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpufleet.errors import NotFound
from gpufleet.kube import (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    LEASES,
    NODES,
    POD_GROUPS,
    PODS,
    KubeClient,
    Selection,
)
from gpufleet.kube.errors import KubernetesRefused
from gpufleet.model.claim import GpuClaim
from gpufleet.placement.kubernetes import Explanation, GpuLease, Ledger, explain
from gpufleet.placement.kubernetes.explain import explain_pod

FRESH = 2.0
"""Seconds that a picture is good for."""


@dataclass
class _Picture:
    ledger: Ledger
    read_at: float


class ClaimDesk:
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
        ledger = await self.ledger()
        return [ledger.claims[key] for key in sorted(ledger.claims)]

    async def leases(self) -> list[GpuLease]:
        """All leases of GPUs, by node and GPU."""
        ledger = await self.ledger()
        return sorted(ledger.leases.values(), key=lambda lease: (lease.node, lease.gpu))

    async def explain(self, namespace: str, claim: str) -> Explanation:
        """Why a claim waits; NotFound if there is none of that name."""
        ledger = await self.ledger()
        if (namespace, claim) not in ledger.claims:
            raise NotFound(f"there is no GpuClaim {claim} in namespace {namespace}")
        return explain(ledger, namespace, claim)

    async def explain_pod(self, namespace: str, name: str) -> Explanation:
        """Why a pod waits; NotFound if there is none of that name."""
        ledger = await self.ledger()
        for pod in ledger.pods.values():
            if (pod.metadata.namespace, pod.metadata.name) == (namespace, name):
                return explain_pod(ledger, pod)
        raise NotFound(f"there is no pod {name} in namespace {namespace}")

    async def ledger(self) -> Ledger:
        """The picture as of now, or a moment ago."""
        async with self._reading:
            if self._picture is None or self._clock() - self._picture.read_at > FRESH:
                self._picture = _Picture(await self._read(), self._clock())
            return self._picture.ledger

    async def _read(self) -> Ledger:
        client, ledger = self._client, Ledger()
        nodes, reports, leases, claims, pods = await asyncio.gather(
            client.list(NODES),
            client.list(GPU_NODE_STATUSES),
            client.list(LEASES, Selection(namespace=self._namespace)),
            client.list(GPU_CLAIMS),
            client.list(PODS),
        )
        for node in nodes.items:
            ledger.put_node(node)
        for lease in leases.items:
            ledger.put_lease(lease)
        for pod in pods.items:
            ledger.put_pod(pod)
        for report in reports.items:
            ledger.put_report(report)
        for claim in claims.items:
            ledger.claims[claim.metadata.namespace, claim.metadata.name] = claim
        try:
            for group in (await client.list(POD_GROUPS)).items:
                ledger.groups[group.metadata.namespace, group.metadata.name] = group
        except KubernetesRefused:
            # The PodGroup CRD need not be there; claims then say the size of their gang.
            pass
        return ledger
