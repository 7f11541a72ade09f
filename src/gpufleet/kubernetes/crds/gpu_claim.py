"""GpuClaim: what a pod asks of the scheduler, and what it got.

The types are the schema: `gpufleet.kubernetes.crds.generate` makes the CustomResourceDefinition from the
annotations and descriptions here, so that `kubectl explain`, validation and this program
can't drift apart. Wire names are the documented ones.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from gpufleet.kubernetes.crds.schema import Rule
from gpufleet.kubernetes.objects import EMPTY, Fields, KubeObject

MOST_GPUS = 64
"""The most GPUs that one node can have."""

DEFAULT_SHARE = 0.1
"""The part of a GPU that a Shared claim takes if it doesn't say."""

Policy = Literal["contiguous", "spread", "preferIds"]
Exclusivity = Literal["Exclusive", "Shared", "MIG"]
TopologyMode = Literal["Required", "Preferred", "Ignore"]
ClaimPhase = Literal["Pending", "Reserved", "Bound", "Failed"]

GpuId = Annotated[int, Meta(ge=0, lt=MOST_GPUS)]


class ClaimDevices(Fields, frozen=True):
    """Which GPUs are asked for."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.count >= 1 && self.count <= {MOST_GPUS}",
            f"count must be between 1 and {MOST_GPUS}: all GPUs of a claim are on one node",
            "count",
        ),
        Rule(
            "!has(self.policy) || self.policy != 'preferIds' || (has(self.preferIds) && size(self.preferIds) > 0)",
            "the policy preferIds needs at least one GPU id in preferIds",
            "preferIds",
        ),
        Rule(
            "!has(self.share) || (has(self.exclusivity) && self.exclusivity == 'Shared')",
            "share is for claims with exclusivity Shared only",
            "share",
        ),
        Rule(
            "!has(self.share) || (self.share >= 0.01 && self.share <= 1.0)",
            "share must be between 0.01 and 1.0 of a GPU",
            "share",
        ),
        Rule(
            "(has(self.exclusivity) && self.exclusivity == 'MIG') == has(self.migProfile)",
            "exclusivity MIG and migProfile go together: give both or neither",
            "migProfile",
        ),
    )

    count: Annotated[int, Meta(description="Number of GPUs needed, all on one node.")]
    policy: Annotated[
        Policy,
        Meta(
            description="Which free GPUs are taken: contiguous takes adjacent ids, spread takes GPUs of "
            "different islands, preferIds takes the ids listed in preferIds where they are free."
        ),
    ] = "contiguous"
    prefer_ids: Annotated[
        tuple[GpuId, ...],
        Meta(
            description="GPU ids to take first; used with the policy preferIds. Others are taken where these are not free.",
            max_length=MOST_GPUS,
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    exclusivity: Annotated[
        Exclusivity,
        Meta(
            description="Exclusive gives whole GPUs to one pod, Shared lets several pods use a GPU without "
            "isolation, MIG gives one MIG instance per GPU counted."
        ),
    ] = "Exclusive"
    share: Annotated[
        float | None,
        Meta(
            description=f"Part of each GPU that a Shared claim takes, 0.01 to 1.0; {DEFAULT_SHARE} if not given. "
            "The shares on one GPU never exceed 1.0 in all."
        ),
    ] = None
    mig_profile: Annotated[
        str,
        Meta(
            description="MIG profile of the instances asked for, such as 1g.10gb; needed with exclusivity MIG.",
            min_length=1,
            max_length=63,
        ),
    ] = ""


class ClaimSelector(Fields, frozen=True):
    """Which nodes may serve the claim."""

    match_labels: Annotated[
        Mapping[str, str], Meta(description="Labels that a node must carry, all of them.")
    ] = EMPTY


class ClaimTopology(Fields, frozen=True):
    """What the claim asks of the links between its GPUs."""

    mode: Annotated[
        TopologyMode,
        Meta(
            description="Required keeps the pod pending until GPUs of one island with enough bandwidth are free, "
            "Preferred takes such GPUs if there are any, Ignore does not look at the links."
        ),
    ] = "Preferred"
    min_bandwidth_gbps: Annotated[
        int, Meta(ge=0, description="Least bandwidth of each GPU to its peers, in GB/s.")
    ] = field(default=0, name="minBandwidthGBps")


class ClaimSpec(Fields, frozen=True):
    """What is asked for."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.devices.policy) && self.devices.policy == 'spread' && self.devices.count > 1"
            " && has(self.topology) && has(self.topology.mode) && self.topology.mode == 'Required')",
            "the policy spread takes GPUs of different islands, topology.mode Required asks for one island: "
            "with more than one GPU they exclude each other",
            "topology",
        ),
    )

    devices: Annotated[ClaimDevices, Meta(description="The GPUs that are needed.")]
    selector: Annotated[ClaimSelector | None, Meta(description="The nodes that may serve the claim.")] = None
    topology: Annotated[ClaimTopology | None, Meta(description="Wishes for the links between the GPUs.")] = (
        None
    )
    gang_ref: Annotated[
        str,
        Meta(
            description="Name of the PodGroup, in the claim's namespace, whose pods are placed all together or not at all.",
            max_length=253,
        ),
    ] = ""
    scheduler_name: Annotated[
        str,
        Meta(
            description="Scheduler that the webhook writes into pods that name this claim and no scheduler of their own.",
            max_length=253,
        ),
    ] = ""


class PodAllocation(Fields, frozen=True):
    """What one pod that names the claim has got."""

    pod_uid: Annotated[str, Meta(description="UID of the pod.")]
    pod_name: Annotated[str, Meta(description="Name of the pod, in the claim's namespace.")] = ""
    node_name: Annotated[str, Meta(description="Node whose GPUs the pod got.")] = ""
    gpu_ids: Annotated[tuple[int, ...], Meta(description="Ids of the GPUs on that node.")] = ()
    uuids: Annotated[
        tuple[str, ...],
        Meta(description="UUIDs of the GPUs or of the MIG instances, in the order of gpuIds."),
    ] = ()
    share: Annotated[
        float | None, Meta(description="Part of each GPU that the pod holds, if the claim is Shared.")
    ] = None
    phase: Annotated[ClaimPhase, Meta(description="How far the allocation is.")] = "Pending"


class ClaimStatus(Fields, frozen=True):
    """What the scheduler has done so far."""

    phase: Annotated[
        ClaimPhase,
        Meta(
            description="Pending until GPUs are found, Reserved while they are held, Bound once the pod is placed, "
            "Failed if it can never be served."
        ),
    ] = "Pending"
    node_name: Annotated[str, Meta(description="Node where GPUs are allocated.")] = ""
    gpu_ids: Annotated[tuple[int, ...], Meta(description="Allocated GPU ids.")] = ()
    allocated: Annotated[str, Meta(description="Node and GPU ids in one, as in node-a:0,1.")] = ""
    message: Annotated[
        str, Meta(description="What happened, or what the claim waits for, in a sentence.")
    ] = ""
    allocations: Annotated[
        tuple[PodAllocation, ...],
        Meta(
            description="One entry per pod that names the claim; the fields above show the first.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["podUid"]},
        ),
    ] = ()


class GpuClaim(KubeObject, frozen=True, kw_only=True):
    """A request for GPUs that pods name in the annotation gpu.scheduling/claim."""

    spec: Annotated[ClaimSpec, Meta(description="What is asked for.")]
    status: Annotated[ClaimStatus, Meta(description="What the scheduler has done so far.")] = field(
        default_factory=ClaimStatus
    )
