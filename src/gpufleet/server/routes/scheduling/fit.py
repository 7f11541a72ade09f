"""`/api/queue/fit`: whether pods that do not exist would fit now, where, and otherwise when and why not."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.errors import InvalidRequest, NotFound
from gpufleet.fleet.clusters import Clusters
from gpufleet.kubernetes.quantities import parse_quantity
from gpufleet.model.gpu_models import accepted_models
from gpufleet.model.namespaces import Namespaces
from gpufleet.placement import Policy, Request, Topology
from gpufleet.scheduler.fit import Fit, fit, hypothetical_pod
from gpufleet.server.claim_view import ClaimView
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams, Model
from gpufleet.server.routes.scheduling.waiting import (
    GroupingParam,
    OwnNamespace,
    StartEstimate,
    check_namespace,
    estimate_row,
    hypothetical_unit,
)
from gpufleet.server.start_times import StartTimes

MOST_PODS = 64
_MOST_NODES = 50
Quantity = Annotated[str, Meta(max_length=32)]


class FitParams(ClusterParams, rename="camel"):
    """Pods that do not exist."""

    gpus: Annotated[int, Meta(ge=1, le=1024, description="GPUs of each pod.")] = 1
    pods: Annotated[int, Meta(ge=1, le=MOST_PODS, description="Pods that start together.")] = 1
    model: Model = ""
    grouping: GroupingParam = "any"
    cpu: Annotated[Quantity, Meta(description="CPUs of each pod, such as 8 or 500m.")] = ""
    memory: Annotated[Quantity, Meta(description="Memory of each pod, such as 64Gi.")] = ""
    tolerations: Annotated[
        str,
        Meta(max_length=1024, description="Keys of taints that the pods tolerate, with commas; * for all."),
    ] = ""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0
    namespace: OwnNamespace = ""

    def __post_init__(self) -> None:
        """Reject amounts that are not quantities."""
        for name, amount in (("cpu", self.cpu), ("memory", self.memory)):
            if amount and not parse_quantity(amount):
                raise InvalidRequest(
                    f"parameter {name}: {amount!r} is not valid; it takes a quantity such as 8 or 64Gi"
                )


class FitNode(msgspec.Struct, rename="camel"):
    """A node that could take at least one pod."""

    name: str
    free: int


class FitAnswer(msgspec.Struct, rename="camel"):
    """Whether the pods fit now; if not, why, what would help, and when they are expected to start."""

    fits: bool
    placed: int
    """How many of the pods fit now."""
    sentence: str
    nodes: list[FitNode]
    """Nodes that could take a pod now, the fullest first, at most 50."""
    total_nodes: int
    reasons: dict[str, int]
    remedies: list[str]
    estimate: StartEstimate | None


def fit_routes(
    clusters: Clusters, views: Mapping[str, ClaimView], starts: Mapping[str, StartTimes]
) -> list[Route]:
    """Return the route; a cluster that is not on Kubernetes takes no pods."""

    @get("/api/queue/fit", scope="filtered", example=_EXAMPLE)
    async def would_fit(query: FitParams, namespaces: Namespaces) -> FitAnswer:
        """Whether pods with these requests would fit now.

        Counts free healthy GPUs, cordons, taints, CPU and memory, as the planner does. With a namespace also the limit
        and the budget of its GpuQueue.
        """
        check_namespace(query.namespace, namespaces)
        name = clusters.synced(query.cluster).name
        view, times = views.get(name), starts.get(name)
        if view is None or times is None:
            raise NotFound(f"cluster {name} takes no pods: it is not on Kubernetes")
        tolerated = tuple(key.strip() for key in query.tolerations.split(",") if key.strip())
        pod = hypothetical_pod(query.cpu, query.memory, tolerated)
        found = fit(await view.ledger(), _request(query), pod, query.pods, namespaces)
        unit = hypothetical_unit(query.gpus, query.pods, query.model, query.priority, query.grouping)
        refusal = await times.refusal(unit, query.namespace) if query.namespace else ""
        estimate = None
        if found.placed < query.pods or refusal:
            estimate = estimate_row(await times.hypothetical(unit, query.namespace))
        return _answer(found, query.pods, refusal, estimate)

    return [would_fit]


def _request(query: FitParams) -> Request:
    return Request(
        count=query.gpus,
        policy=Policy.CONTIGUOUS if query.grouping == "contiguous" else Policy.ANY,
        topology=Topology.REQUIRED if query.grouping == "island" else Topology.IGNORE,
        models=accepted_models(query.model) if query.model else frozenset(),
    )


def _answer(found: Fit, pods: int, refusal: str, estimate: StartEstimate | None) -> FitAnswer:
    return FitAnswer(
        found.placed == pods and not refusal,
        found.placed,
        f"the pods would wait for {refusal}" if refusal else found.sentence,
        [FitNode(node.name, node.free) for node in found.nodes[:_MOST_NODES]],
        len(found.nodes),
        found.reasons,
        found.remedies,
        estimate,
    )


_EXAMPLE = FitAnswer(
    False,
    0,
    "0/40 nodes fit: 40 have fewer than 8 free GPUs",
    [],
    0,
    {"have fewer than 8 free GPUs": 40},
    ["ask for 4 instead of 8 (then it fits on gpu-node-1)"],
    None,
)
