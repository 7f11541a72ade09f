"""What a decision about a node is based on: plain data, read from the caches of the controller."""

from dataclasses import dataclass, field
from enum import IntEnum

from gpufleet.kubernetes.crds.gpu_node_status import FindingStatus

JOB_ABSENT, JOB_ACTIVE, JOB_SUCCEEDED, JOB_FAILED = "absent", "active", "succeeded", "failed"

MANAGED_BY = ("app.kubernetes.io/managed-by", "gpufleet-repair")
"""The label of objects that are ours."""


class Policy(IntEnum):
    """What the controller may do, each including the ones before."""

    OBSERVE = 0
    """Conditions and events only."""
    CORDON = 1
    """Taint the node, so that no new pod comes."""
    DRAIN = 2
    """Also evict affected pods."""
    REPAIR = 3
    """Also run repair Jobs."""


@dataclass(frozen=True)
class RepairRules:
    """The settings of the controller that decisions need."""

    policy: Policy = Policy.OBSERVE
    taint_gpu_faults: bool = True
    settle: float = 30.0
    proofs: int = 2
    max_attempts: int = 3
    max_grace: float = 1800.0
    drain_timeout: float = 3600.0
    repair_timeout: float = 1800.0
    flap_limit: int = 3
    flap_window: float = 86400.0
    """Seconds in which `flap_limit` counts faults."""
    max_share: float = 10.0
    max_per_hour: int = 10
    release_lead: float = 5.0
    """Seconds in which the agent closes the driver before a reset."""
    hooks: frozenset[str] = frozenset()
    """Names of the Job templates that exist."""


@dataclass(frozen=True)
class PodView:
    """A pod that may have to leave."""

    uid: str
    namespace: str
    name: str
    node: str
    gpus: frozenset[int] = frozenset()
    """GPUs of its own node that it holds."""
    gang: object = None
    grace: float = 0.0
    """Seconds that it needs to write a checkpoint."""
    evict_at: str = ""
    """The annotation that announces the eviction."""
    terminating: bool = False
    permanent: bool = False
    """Whether a DaemonSet or the kubelet would start it again at once."""


@dataclass(frozen=True)
class NodeView:
    """One node as the API server shows it."""

    name: str
    gpus: tuple[int, ...] = ()
    model: str = ""
    findings: tuple[FindingStatus, ...] = ()
    """Only those that make GPUs unhealthy."""
    pods: tuple[PodView, ...] = ()
    """Pods on this node, and on other nodes the other members of their gangs."""
    blocked_by_budget: bool = False
    """Whether a PodDisruptionBudget forbids that the affected pods leave together."""
    job: str = JOB_ABSENT
    """State of the Job that the status names."""
    boot_id: str = ""
    ready: bool = True
    in_use: frozenset[int] = frozenset()
    """GPUs that a pod holds or whose processes still run."""
    tainted: bool = False
    resumed_at: float = 0.0
    repair_uid: str = ""
    """Uid of the GpuRepair, which makes the names of its Jobs unique."""
    released: bool = False
    """Whether the agent is asked to keep the driver closed."""
    unknown: frozenset[int] = field(default_factory=frozenset)
    """GPUs that could not be read: their findings may be missing."""


@dataclass(frozen=True)
class ClusterView:
    """What the disruption budget counts."""

    nodes: int = 1
    """Nodes with GPUs."""
    disrupted: int = 0
    """Other nodes that are drained, repaired, tested or wait for a human."""
    drains: tuple[float, ...] = ()
    """When drains of any node started."""
