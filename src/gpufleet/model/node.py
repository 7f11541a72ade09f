"""A node and its GPUs as their sources report them.

`FleetNode` comes from the cluster (Kubernetes, Slurm, Docker, this machine), `NodeDevices` from the GPUs
themselves (the agent's GpuNodeStatus, NVML). The fleet combines the two.
"""

from enum import StrEnum

import msgspec


class Health(StrEnum):
    """Whether a GPU can be used. Unknown, if it could not be checked, is not healthy."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


class FleetGpu(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One GPU of a node."""

    index: int
    uuid: str = ""
    model: str = ""
    vendor: str = ""
    memory_bytes: int | None = None
    island: str = ""
    bandwidth_gbps: int = 0
    health: Health = Health.HEALTHY
    health_reason: str = ""
    health_since: float | None = None
    cordoned: bool = False
    mig_profiles: tuple[str, ...] = ()
    in_use_by: tuple[str, ...] = ()
    """Uids of the pods that use it, as the agent reports them."""
    draining: bool = False
    """Whether processes of deleted pods still use it; it is allocated again when they have ended."""


class FleetNode(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A machine of the cluster. Times are Unix seconds."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names that exporters may use for it: host name, addresses."""
    source: str = "k8s"
    allocation_known: bool = True
    """Whether its source says which pods hold GPUs; a metric source alone does not."""
    ready: bool = True
    not_ready_reason: str = ""
    cordoned: bool = False
    fault: str = ""
    """Why the node is faulty although Ready: the taint that marks it."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    gpu_count: int = 0
    """Whole GPUs according to the cluster; 0 if only the devices are known."""
    gpu_model: str = ""
    vendor: str = ""
    created: float = 0.0


class NodeDevices(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The GPUs of one node, ordered by index."""

    node: str
    gpus: tuple[FleetGpu, ...]
    total: int = 0
    """The number of GPUs, at least as many as are listed."""
