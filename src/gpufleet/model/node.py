"""A node and its GPUs as their sources describe them.

`FleetNode` is what the cluster says (Kubernetes, Slurm, Docker, this machine); `NodeDevices` is what
looks at the GPUs themselves say (the agent's GpuNodeStatus, NVML). The fleet joins the two.
"""

from enum import StrEnum

import msgspec


class Health(StrEnum):
    """Whether a GPU can be used. Unknown is not healthy: nobody could look."""

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
    """Uids of the pods that use it, where the agent saw them."""


class FleetNode(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A machine of the cluster, by its source. Times are Unix seconds."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names under which exporters may know it: host name, addresses."""
    source: str = "k8s"
    ready: bool = True
    not_ready_reason: str = ""
    cordoned: bool = False
    fault: str = ""
    """Why the node is faulty although Ready: the taint that says so."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    gpu_count: int = 0
    """Whole GPUs that the cluster counts here; 0 where only the devices know."""
    gpu_model: str = ""
    vendor: str = ""
    created: float = 0.0


class NodeDevices(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """The GPUs of one node, seen one by one, ordered by index."""

    node: str
    gpus: tuple[FleetGpu, ...]
    total: int = 0
    """How many the node has, at least as many as are listed."""
