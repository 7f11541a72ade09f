"""GpuClaim: the GPUs that a pod requests, and what the scheduler allocated.

`gpufleet.kubernetes.crds.generate` generates the CustomResourceDefinition from the types and
descriptions here, so `kubectl explain`, validation and this program always agree.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from gpufleet.kubernetes.crds.schema import Rule
from gpufleet.kubernetes.objects import EMPTY, Fields, KubeObject

MOST_GPUS = 64
"""The maximum number of GPUs of one node."""

DEFAULT_SHARE = 0.1
"""The share of a GPU that a Shared claim takes by default."""

Policy = Literal["contiguous", "spread", "preferIds"]
Exclusivity = Literal["Exclusive", "Shared", "MIG"]
TopologyMode = Literal["Required", "Preferred", "Ignore"]
LevelMode = Literal["Required", "Preferred"]
ClaimPhase = Literal["Pending", "Reserved", "Bound", "Failed"]

GpuId = Annotated[int, Meta(ge=0, lt=MOST_GPUS)]


class ClaimDevices(Fields, frozen=True):
    """The GPUs that are requested."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"self.count >= 1 && self.count <= {MOST_GPUS}",
            lambda devices: 1 <= devices["count"] <= MOST_GPUS,
            f"count must be between 1 and {MOST_GPUS}: all GPUs of a claim are on one node",
            "count",
        ),
        Rule(
            "!has(self.policy) || self.policy != 'preferIds' || (has(self.preferIds) && size(self.preferIds) > 0)",
            lambda devices: devices.get("policy") != "preferIds" or bool(devices.get("preferIds")),
            "the policy preferIds needs at least one GPU id in preferIds",
            "preferIds",
        ),
        Rule(
            "!has(self.share) || (has(self.exclusivity) && self.exclusivity == 'Shared')",
            lambda devices: "share" not in devices or devices.get("exclusivity") == "Shared",
            "share is for claims with exclusivity Shared only",
            "share",
        ),
        Rule(
            "!has(self.share) || (self.share >= 0.01 && self.share <= 1.0)",
            lambda devices: "share" not in devices or 0.01 <= devices["share"] <= 1.0,
            "share must be between 0.01 and 1.0 of a GPU",
            "share",
        ),
        Rule(
            "!has(self.migProfile) || (has(self.exclusivity) && self.exclusivity == 'MIG')",
            lambda devices: "migProfile" not in devices or devices.get("exclusivity") == "MIG",
            "migProfile is for claims with exclusivity MIG only",
            "migProfile",
        ),
    )

    count: Annotated[int, Meta(description="Number of GPUs needed, all on one node.")]
    policy: Annotated[
        Policy,
        Meta(
            description="Which free GPUs to take: contiguous takes adjacent ids, spread takes GPUs of "
            "different islands, preferIds takes the GPUs listed in preferIds if they are free."
        ),
    ] = "contiguous"
    prefer_ids: Annotated[
        tuple[GpuId, ...],
        Meta(
            description="GPU ids to take first, with the policy preferIds. If they are not free, others are taken.",
            max_length=MOST_GPUS,
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    exclusivity: Annotated[
        Exclusivity,
        Meta(
            description="Exclusive allocates whole GPUs to one pod, Shared lets several pods use a GPU without "
            "isolation, MIG allocates count MIG instances."
        ),
    ] = "Exclusive"
    share: Annotated[
        float | None,
        Meta(
            description=f"Share of each GPU that a Shared claim takes, from 0.01 to 1.0; the default is {DEFAULT_SHARE}. "
            "The shares of one GPU never exceed 1.0 in total."
        ),
    ] = None
    mig_profile: Annotated[
        str,
        Meta(
            description="MIG profile of the instances, such as 1g.10gb. Without it a claim with exclusivity MIG takes "
            "any free instances, the smallest first.",
            min_length=1,
            max_length=63,
        ),
    ] = ""

    @property
    def shared_milli(self) -> int | None:
        """Return the part of each GPU that a Shared claim takes, in thousandths; None for other claims."""
        if self.exclusivity != "Shared":
            return None
        return round((DEFAULT_SHARE if self.share is None else self.share) * 1000)


class ClaimSelector(Fields, frozen=True):
    """The nodes that may serve the claim."""

    match_labels: Annotated[
        Mapping[str, str], Meta(description="Labels that a node must have, all of them.")
    ] = EMPTY


class ClaimTopology(Fields, frozen=True):
    """Requirements on the links between the GPUs of a pod and between the nodes of a gang."""

    mode: Annotated[
        TopologyMode,
        Meta(
            description="Required keeps the pod pending until enough GPUs of one island with enough bandwidth are "
            "free, Preferred takes such GPUs if there are any, Ignore ignores the links."
        ),
    ] = "Preferred"
    min_bandwidth_gbps: Annotated[
        int, Meta(ge=0, description="Minimum bandwidth of each GPU to the other GPUs, in GB/s.")
    ] = field(default=0, name="minBandwidthGBps")
    level: Annotated[
        str,
        Meta(
            description="Node label of which all members of the gang get nodes with the same value, such as "
            "nvidia.com/gpu.clique. It must be one of the scheduler's topology levels.",
            max_length=317,
        ),
    ] = ""
    level_mode: Annotated[
        LevelMode,
        Meta(
            description="Required keeps the gang pending until all members fit into one group of such nodes, "
            "Preferred uses as few groups as possible."
        ),
    ] = "Required"


class ClaimSpec(Fields, frozen=True):
    """The requested GPUs and where they may be."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!(has(self.devices.policy) && self.devices.policy == 'spread' && self.devices.count > 1"
            " && has(self.topology) && has(self.topology.mode) && self.topology.mode == 'Required')",
            lambda spec: (
                not (
                    spec["devices"].get("policy") == "spread"
                    and spec["devices"]["count"] > 1
                    and spec.get("topology", {}).get("mode") == "Required"
                )
            ),
            "the policy spread takes GPUs of different islands, topology.mode Required needs one island: "
            "they exclude each other if count is more than 1",
            "topology",
        ),
    )

    devices: Annotated[ClaimDevices, Meta(description="The GPUs that are requested.")]
    selector: Annotated[ClaimSelector | None, Meta(description="The nodes that may serve the claim.")] = None
    topology: Annotated[
        ClaimTopology | None, Meta(description="Requirements on the links between the GPUs.")
    ] = None
    gang_ref: Annotated[
        str,
        Meta(
            description="Name of a PodGroup in the claim's namespace. Its pods are scheduled all together or not at all.",
            max_length=253,
        ),
    ] = ""
    scheduler_name: Annotated[
        str,
        Meta(
            description="Scheduler name that the webhook sets on pods that use this claim and name no scheduler.",
            max_length=253,
        ),
    ] = ""


class PodAllocation(Fields, frozen=True):
    """The allocation of one pod that uses the claim."""

    pod_uid: Annotated[str, Meta(description="UID of the pod.")]
    pod_name: Annotated[str, Meta(description="Name of the pod, in the claim's namespace.")] = ""
    node_name: Annotated[str, Meta(description="Node of the allocated GPUs.")] = ""
    gpu_ids: Annotated[tuple[int, ...], Meta(description="Ids of the GPUs on that node.")] = ()
    uuids: Annotated[
        tuple[str, ...],
        Meta(description="UUIDs of the GPUs or of the MIG instances, in the order of gpuIds."),
    ] = ()
    share: Annotated[
        float | None, Meta(description="Share of each GPU that the pod holds, if the claim is Shared.")
    ] = None
    phase: Annotated[ClaimPhase, Meta(description="Phase of the allocation.")] = "Pending"


class ClaimStatus(Fields, frozen=True):
    """The current allocation, written by the scheduler."""

    phase: Annotated[
        ClaimPhase,
        Meta(
            description="Pending until GPUs are found, Reserved while they are leased for the pod, Bound once the pod "
            "has a node, Failed if the claim is invalid."
        ),
    ] = "Pending"
    node_name: Annotated[str, Meta(description="Node of the allocated GPUs.")] = ""
    gpu_ids: Annotated[tuple[int, ...], Meta(description="Ids of the allocated GPUs.")] = ()
    allocated: Annotated[str, Meta(description="Node and GPU ids in one value, as in node-a:0,1.")] = ""
    message: Annotated[
        str, Meta(description="What happened, or why the claim is pending, in one sentence.")
    ] = ""
    expected_start: Annotated[
        datetime | None,
        Meta(
            description="When a pending pod is expected to get GPUs, rounded; an estimate of the gpufleet server that is "
            "seldom rewritten. The API of the server has the interval."
        ),
    ] = None
    allocations: Annotated[
        tuple[PodAllocation, ...],
        Meta(
            description="One entry per pod that uses the claim; the fields above repeat the first entry.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["podUid"]},
        ),
    ] = ()


class GpuClaim(KubeObject, frozen=True, kw_only=True):
    """A request for GPUs. Pods use it by naming it in the annotation gpu.scheduling/claim."""

    spec: Annotated[ClaimSpec, Meta(description="The requested GPUs and where they may be.")]
    status: Annotated[ClaimStatus, Meta(description="The current allocation, written by the scheduler.")] = (
        field(default_factory=ClaimStatus)
    )
