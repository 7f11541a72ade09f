"""`/api/claims*` and `/api/leases`: GpuClaims, why they wait, and the leases of GPUs."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.errors import NotFound
from gpufleet.estimates.starts import Estimate
from gpufleet.fleet.clusters import Clusters
from gpufleet.kubernetes.crds.gpu_claim import ClaimPhase, GpuClaim
from gpufleet.kubernetes.leases import GpuLease
from gpufleet.model.label_selector import parse_label_selector
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.scheduler.explain import Explanation
from gpufleet.scheduler.state.claim_requests import gang_size
from gpufleet.server.claim_view import ClaimView
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams, LabelSelector, PageNumber, PageSize
from gpufleet.server.routes.scheduling.waiting import StartEstimate, estimate_row
from gpufleet.server.start_times import StartTimes


class ClaimParams(ClusterParams, rename="camel"):
    """Filter and page of the list of claims."""

    page_num: PageNumber = 1
    page_size: PageSize = 100
    namespace: Annotated[str, Meta(max_length=253, description="Claims of this namespace only.")] = ""
    name: Annotated[str, Meta(max_length=253, description="Part of the name of the claim.")] = ""
    phase: Annotated[ClaimPhase | None, Meta(description="Claims in this phase only.")] = None
    gang: Annotated[str, Meta(max_length=253, description="Claims of this gang only; * for any gang.")] = ""
    label_selector: LabelSelector = ""

    def __post_init__(self) -> None:
        """Reject a wrong selector."""
        parse_label_selector(self.label_selector)


class LeaseParams(ClusterParams, rename="camel"):
    """Filter and page of the list of leases."""

    page_num: PageNumber = 1
    page_size: PageSize = 100
    node: Annotated[str, Meta(max_length=253, description="Leases of this node's GPUs only.")] = ""
    namespace: Annotated[str, Meta(max_length=253, description="Leases of pods in this namespace only.")] = ""
    search: Annotated[
        str, Meta(max_length=253, description="Part of the name of a node, pod, namespace or claim.")
    ] = ""
    foreign: Annotated[
        bool | None, Meta(description="Leases that gpufleet's scheduler did not create, or did.")
    ] = None


class ClaimAllocation(msgspec.Struct, rename="camel"):
    """The GPUs of one pod of a claim."""

    pod_uid: str
    pod_name: str
    node_name: str
    gpu_ids: list[int]
    share: float | None
    phase: str


class ClaimRow(msgspec.Struct, rename="camel"):
    """A claim: its request and its allocation."""

    namespace: str
    name: str
    uid: str
    count: int
    policy: str
    exclusivity: str
    gang: str
    gang_size: int | None
    """How many pods the gang needs, if the claim gives it; otherwise the PodGroup does."""
    phase: str
    node_name: str
    gpu_ids: list[int]
    allocated: str
    message: str
    allocations: list[ClaimAllocation]
    created_at: datetime | None


class ClaimPage(msgspec.Struct):
    """One page of claims, and how many there are in all."""

    data: list[ClaimRow]
    total: int


class LeaseHolder(msgspec.Struct, rename="camel"):
    """A pod that holds a share of a GPU; its name is empty if the lease does not give it."""

    pod_uid: str
    namespace: str
    pod_name: str
    claim: str
    share: float | None
    """0.0 to 1.0; null for MIG instances."""
    instances: list[str]


class LeaseRow(msgspec.Struct, rename="camel"):
    """A lease of a GPU; `foreign` if gpufleet's scheduler did not create it."""

    name: str
    node: str
    gpu: int
    foreign: bool
    holders: list[LeaseHolder]
    acquired_at: datetime | None


class LeasePage(msgspec.Struct):
    """One page of leases, and how many there are in all."""

    data: list[LeaseRow]
    total: int


class WhyWaiting(msgspec.Struct, rename="camel"):
    """Why a claim waits: a sentence, the number of nodes by reason, and what would make it fit."""

    waiting: bool
    sentence: str
    reasons: dict[str, int]
    remedies: list[str]
    estimate: StartEstimate | None = None
    """When it is expected to start, if it waits for GPUs."""


def claim_routes(
    clusters: Clusters, views: Mapping[str, ClaimView], starts: Mapping[str, StartTimes]
) -> list[Route]:
    """Return the routes; a cluster without a view has no claims and no leases."""

    def view_of(name: str) -> ClaimView | None:
        return views.get(clusters.synced(name).name)

    def explaining_view(name: str) -> ClaimView:
        view = view_of(name)
        if view is None:
            raise NotFound(f"cluster {clusters.get(name).name} has no GpuClaims: it is not on Kubernetes")
        return view

    @get("/api/claims", scope="filtered", example=ClaimPage([_CLAIM], 1))
    async def list_claims(query: ClaimParams, namespaces: Namespaces) -> ClaimPage:
        """GpuClaims by namespace and name."""
        view = view_of(query.cluster)
        selects = parse_label_selector(query.label_selector)
        claims = [
            claim
            for claim in (await view.claims() if view else [])
            if is_visible(namespaces, claim.metadata.namespace)
            and query.namespace in ("", claim.metadata.namespace)
            and query.name.lower() in claim.metadata.name.lower()
            and query.phase in (None, claim.status.phase)
            and (query.gang in ("", claim.spec.gang_ref) or (query.gang == "*" and claim.spec.gang_ref))
            and selects(claim.metadata.labels)
        ]
        first = (query.page_num - 1) * query.page_size
        return ClaimPage([_claim_row(each) for each in claims[first : first + query.page_size]], len(claims))

    @get("/api/leases", scope="filtered", example=LeasePage([_LEASE], 1))
    async def list_leases(query: LeaseParams, namespaces: Namespaces) -> LeasePage:
        """Leases of GPUs with their holders, by node and GPU.

        A caller who is limited to namespaces gets the leases that pods in them hold, without other holders.
        """
        view = view_of(query.cluster)
        found = await view.leases(namespaces) if view else []
        leases = [
            lease
            for lease in found
            if query.node in ("", lease.node)
            and query.foreign in (None, lease.foreign)
            and _is_held(lease, query.namespace, query.search.lower())
        ]
        first = (query.page_num - 1) * query.page_size
        return LeasePage([_lease_row(each) for each in leases[first : first + query.page_size]], len(leases))

    @get("/api/claims/{namespace:str}/{name:str}/explain", scope="filtered", example=_WHY)
    async def explain_claim(
        namespace: str, name: str, query: ClusterParams, namespaces: Namespaces
    ) -> WhyWaiting:
        """Why a claim waits: a sentence, the number of nodes by reason, and what would make it fit."""
        why = await explaining_view(query.cluster).explain(namespace, name, namespaces)
        times = starts.get(clusters.get(query.cluster).name) if why.waiting else None
        return _why_row(why, await times.of_claim(namespace, name) if times is not None else None)

    @get("/api/pods/{namespace:str}/{name:str}/explain", scope="filtered", example=_WHY)
    async def explain_pod(
        namespace: str, name: str, query: ClusterParams, namespaces: Namespaces
    ) -> WhyWaiting:
        """Why a pod with a claim waits: a sentence, the number of nodes by reason, and what would make it fit."""
        why = await explaining_view(query.cluster).explain_pod(namespace, name, namespaces)
        times = starts.get(clusters.get(query.cluster).name) if why.waiting else None
        return _why_row(why, await times.of_pod(namespace, name) if times is not None else None)

    return [list_claims, list_leases, explain_claim, explain_pod]


def _why_row(why: Explanation, estimate: Estimate | None) -> WhyWaiting:
    row = estimate_row(estimate) if estimate is not None else None
    return WhyWaiting(why.waiting, why.sentence, why.reasons, list(why.remedies), row)


def _claim_row(claim: GpuClaim) -> ClaimRow:
    devices, status, meta = claim.spec.devices, claim.status, claim.metadata
    return ClaimRow(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        count=devices.count,
        policy=devices.policy,
        exclusivity=devices.exclusivity,
        gang=claim.spec.gang_ref,
        gang_size=gang_size(claim),
        phase=status.phase,
        node_name=status.node_name,
        gpu_ids=list(status.gpu_ids),
        allocated=status.allocated,
        message=status.message,
        allocations=[
            ClaimAllocation(
                each.pod_uid, each.pod_name, each.node_name, list(each.gpu_ids), each.share, each.phase
            )
            for each in status.allocations
        ],
        created_at=meta.creation_timestamp,
    )


def _is_held(lease: GpuLease, namespace: str, search: str) -> bool:
    """Return whether a pod in `namespace` holds the GPU and one of its names contains `search`."""
    holders = [holder for holder in lease.holders.values() if namespace in ("", holder.namespace)]
    if namespace and not holders:
        return False
    names = [lease.node, *(part for each in holders for part in (each.namespace, each.pod, each.claim))]
    return not search or any(search in name.lower() for name in names)


def _lease_row(lease: GpuLease) -> LeaseRow:
    return LeaseRow(
        name=lease.name,
        node=lease.node,
        gpu=lease.gpu,
        foreign=lease.foreign,
        holders=[
            LeaseHolder(
                uid,
                holder.namespace,
                holder.pod,
                holder.claim,
                None if holder.instances else holder.milli / 1000,
                list(holder.instances),
            )
            for uid, holder in lease.holders.items()
        ],
        acquired_at=lease.object.spec.acquire_time,
    )


_UID = "0b8a4f5e-6f0f-4c3c-9e1f-6a1b2c3d4e5f"
_CLAIM = ClaimRow(
    namespace="ml",
    name="training-gpus",
    uid="5c9d8e7f-1a2b-4c3d-8e9f-0a1b2c3d4e5f",
    count=2,
    policy="contiguous",
    exclusivity="Exclusive",
    gang="",
    gang_size=None,
    phase="Bound",
    node_name="node-a",
    gpu_ids=[0, 1],
    allocated="node-a:0,1",
    message="Successfully allocated",
    allocations=[ClaimAllocation(_UID, "trainer-0", "node-a", [0, 1], None, "Bound")],
    created_at=None,
)
_LEASE = LeaseRow(
    "gpu-node-a-0", "node-a", 0, False, [LeaseHolder(_UID, "ml", "trainer-0", "training-gpus", 1.0, [])], None
)
_WHY = WhyWaiting(
    True,
    "0/40 nodes fit: 40 have fewer than 8 free GPUs",
    {"had fewer than 8 free GPUs": 40},
    ["ask for 4 instead of 8 (then it fits on node-a)"],
)
