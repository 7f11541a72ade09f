"""GpuRepair: how a node with a fault is taken out of service, repaired, tested and returned.

There is at most one per node, with the name of the node. `gpufleet repair` writes the status before it acts, so a new
process continues where the last one was killed. Operators write the spec: acknowledge, silence, resume.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from gpufleet.kubernetes.crds.gpu_claim import GpuId
from gpufleet.kubernetes.objects import Fields, KubeObject

Phase = Literal["Healthy", "Observed", "Cordoned", "Draining", "Drained", "Repairing", "Proving", "Manual"]


class RepairSpec(Fields, frozen=True):
    """What operators say about the repair."""

    node_name: Annotated[str, Meta(description="Name of the Kubernetes node.", min_length=1, max_length=253)]
    acknowledged_by: Annotated[
        str, Meta(description="Who has taken note of the fault: its alerts are not repeated.")
    ] = ""
    acknowledged_episode: Annotated[
        int, Meta(ge=0, description="Which fault of the node is acknowledged: `status.episode`.")
    ] = 0
    acknowledged_at: Annotated[
        datetime | None,
        Meta(description="When it was acknowledged: no alerts are sent about older findings of the node."),
    ] = None
    silenced_until: Annotated[
        datetime | None, Meta(description="Send no alerts about this node before this time.")
    ] = None
    resumed_at: Annotated[
        datetime | None,
        Meta(description="When an operator asked to test and return a node that is in phase Manual."),
    ] = None


class Episode(Fields, frozen=True):
    """A fault that is over."""

    cause: Annotated[str, Meta(description="Signal of the first finding, such as xid-79.")]
    opened: Annotated[datetime, Meta(description="When the fault was found.")]
    closed: Annotated[datetime, Meta(description="When the node was returned.")]
    message: Annotated[str, Meta(description="What was observed.")] = ""
    gpus: Annotated[int, Meta(ge=0, description="Number of GPUs that could not be used.")] = 0
    model: Annotated[str, Meta(description="Product name of the GPUs.")] = ""
    steps: Annotated[tuple[str, ...], Meta(description="What was done, in order.")] = ()
    drain_started: Annotated[datetime | None, Meta(description="When pods were first asked to leave.")] = None


class RepairStatus(Fields, frozen=True):
    """The state of the repair."""

    phase: Annotated[Phase, Meta(description="What happens now.")] = "Healthy"
    since: Annotated[datetime | None, Meta(description="When the phase began.")] = None
    message: Annotated[str, Meta(description="What the repair waits for, or why it stopped.")] = ""
    episode: Annotated[int, Meta(ge=0, description="Number of faults of this node so far.")] = 0
    cause: Annotated[str, Meta(description="Signal of the first finding.")] = ""
    cause_message: Annotated[str, Meta(description="What was observed first.")] = ""
    opened: Annotated[datetime | None, Meta(description="When the fault was found.")] = None
    clear_since: Annotated[
        datetime | None, Meta(description="Since when no finding makes a GPU unhealthy.")
    ] = None
    gpus: Annotated[
        tuple[GpuId, ...],
        Meta(
            description="GPUs affected in this episode.", extra_json_schema={"x-kubernetes-list-type": "set"}
        ),
    ] = ()
    whole_node: Annotated[bool, Meta(description="Whether a finding is about all GPUs of the node.")] = False
    action: Annotated[str, Meta(description="The repair that is tried, such as reset or reboot.")] = ""
    attempts: Annotated[int, Meta(ge=0, description="Repairs tried in this episode.")] = 0
    must_repair: Annotated[
        bool, Meta(description="Whether a repair must follow although no finding is left: a test failed.")
    ] = False
    passes: Annotated[int, Meta(ge=0, description="Tests passed in a row.")] = 0
    job: Annotated[str, Meta(description="Name of the Job of this phase.")] = ""
    job_seen: Annotated[bool, Meta(description="Whether that Job exists or existed.")] = False
    jobs: Annotated[int, Meta(ge=0, description="Jobs started for this node so far.")] = 0
    boot_id: Annotated[str, Meta(description="Boot of the node before it was rebooted.")] = ""
    drain_started: Annotated[datetime | None, Meta(description="When pods were first asked to leave.")] = None
    evict_at: Annotated[datetime | None, Meta(description="When pods are evicted: checkpoint grace.")] = None
    pods: Annotated[
        tuple[str, ...],
        Meta(
            description="UIDs of the pods that must leave: a gang leaves whole.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    steps: Annotated[tuple[str, ...], Meta(description="What was done in this episode, in order.")] = ()
    history: Annotated[
        tuple[Episode, ...],
        Meta(
            description="Earlier faults, the newest last.",
            max_length=50,
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()


class GpuRepair(KubeObject, frozen=True, kw_only=True):
    """The repair of a node whose GPUs had a fault."""

    spec: Annotated[RepairSpec, Meta(description="What operators say.")]
    status: Annotated[RepairStatus, Meta(description="The state of the repair.")] = field(
        default_factory=RepairStatus
    )
