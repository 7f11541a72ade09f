"""GpuNodeStatus: the GPUs of one node, as reported by its agent.

The agent writes it by server-side apply; scheduler and server read it. Devices merge by `id`, so
an operator who cordons a GPU and the agent that reports on it own different fields of the same
entry. `gpufleet.kubernetes.crds.generate` generates the CustomResourceDefinition from these types.
"""

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from gpufleet.kubernetes.crds.gpu_claim import GpuId
from gpufleet.kubernetes.objects import Fields, KubeObject

Health = Literal["Healthy", "Unhealthy", "Unknown"]
Vendor = Literal["nvidia", "amd", "intel"]
Severity = Literal["Warning", "Degraded", "Unhealthy"]
Scope = Literal["GPU", "Island", "Node"]


class MigInstanceStatus(Fields, frozen=True):
    """A MIG instance: a partition of a GPU that is a device of its own."""

    id: Annotated[int, Meta(ge=0, description="Id of the instance on its GPU.")]
    profile: Annotated[str, Meta(description="MIG profile, such as 1g.10gb.")] = ""
    uuid: Annotated[str, Meta(description="UUID of the instance, as used in CUDA_VISIBLE_DEVICES.")] = ""


class DeviceStatus(Fields, frozen=True):
    """One GPU."""

    id: Annotated[GpuId, Meta(description="Id of the GPU on its node.")]
    in_use_by: Annotated[
        tuple[str, ...],
        Meta(
            description="UIDs of the pods that use this GPU.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    health: Annotated[
        Health,
        Meta(
            description="Healthy, Unhealthy, or Unknown if it can't be read. Only Healthy GPUs are allocated."
        ),
    ] = "Unknown"
    bandwidth_gbps: Annotated[
        int, Meta(ge=0, description="Bandwidth to the other GPUs of its island, in GB/s.")
    ] = field(default=0, name="bandwidthGBps")
    island: Annotated[
        str,
        Meta(
            description="Group of GPUs connected by fast links. GPUs of different islands communicate over PCIe."
        ),
    ] = ""
    uuid: Annotated[str, Meta(description="UUID of the GPU, assigned by the driver.")] = ""
    vendor: Annotated[Vendor | None, Meta(description="Vendor of the GPU.")] = None
    model: Annotated[str, Meta(description="Product name.")] = ""
    memory_mib: Annotated[int | None, Meta(description="Memory of the GPU, in MiB.")] = field(
        default=None, name="memoryMiB"
    )
    pci_bus_id: Annotated[str, Meta(description="PCI address, such as 0000:1b:00.0.")] = ""
    numa_node: Annotated[int | None, Meta(description="NUMA node closest to the GPU.")] = None
    health_reason: Annotated[str, Meta(description="Why the GPU is not Healthy, in a sentence.")] = ""
    health_since: Annotated[datetime | None, Meta(description="Time of the last change of health.")] = None
    cordoned: Annotated[bool, Meta(description="Set by an operator: allocate this GPU to no new pod.")] = (
        False
    )
    mig_instances: Annotated[
        tuple[MigInstanceStatus, ...],
        Meta(
            description="MIG instances of the GPU, if MIG is enabled.",
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        ),
    ] = ()
    draining_pods: Annotated[
        tuple[str, ...],
        Meta(
            description="UIDs of deleted pods whose processes still use this GPU. It is allocated to no pod until they end.",
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    nvlinks: Annotated[int, Meta(ge=0, description="The largest number of NVLinks that were active.")] = 0


class FindingStatus(Fields, frozen=True):
    """A problem of a GPU, of the GPUs on NVSwitches, or of the node."""

    signal: Annotated[
        str, Meta(description="The rule that it comes from, such as xid-79 (docs/health-rules.md).")
    ]
    severity: Annotated[
        Severity,
        Meta(description="Unhealthy GPUs are not allocated. Degraded ones are slower than they should be."),
    ]
    scope: Annotated[Scope, Meta(description="GPU, Island (all GPUs on the node's NVSwitches) or Node.")]
    message: Annotated[str, Meta(description="What was observed, in a sentence.")] = ""
    action: Annotated[str, Meta(description="What makes the GPU usable again, such as reset or reboot.")] = ""
    gpu: Annotated[GpuId | None, Meta(description="Id of the GPU, unless it is about the node.")] = None
    since: Annotated[datetime | None, Meta(description="When it was first observed.")] = None


class NodeGpusSpec(Fields, frozen=True):
    """The node that is described."""

    node_name: Annotated[str, Meta(description="Name of the Kubernetes node.", min_length=1, max_length=253)]


class NodeGpus(Fields, frozen=True):
    """The GPUs of the node."""

    devices: Annotated[
        tuple[DeviceStatus, ...],
        Meta(
            description="The GPUs of the node.",
            max_length=64,
            extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["id"]},
        ),
    ] = ()
    total: Annotated[int, Meta(ge=0, description="Number of GPUs on the node.")] = 0
    free: Annotated[
        int, Meta(ge=0, description="Number of GPUs that are Healthy, not cordoned and not used by any pod.")
    ] = 0
    unhealthy: Annotated[int, Meta(ge=0, description="Number of GPUs that are not Healthy.")] = 0
    findings: Annotated[
        tuple[FindingStatus, ...],
        Meta(
            description="The open problems of the node and its GPUs.",
            max_length=256,
            extra_json_schema={"x-kubernetes-list-type": "atomic"},
        ),
    ] = ()
    network_ports: Annotated[
        tuple[str, ...],
        Meta(
            description="InfiniBand and RoCE ports that are or were active, such as mlx5_0/1.",
            max_length=256,
            extra_json_schema={"x-kubernetes-list-type": "set"},
        ),
    ] = ()
    kernel_log: Annotated[
        str, Meta(description="Why the agent can't read the kernel log; empty if it does.")
    ] = ""


class GpuNodeStatus(KubeObject, frozen=True, kw_only=True):
    """The GPUs of one node and their health, reported by the agent on that node."""

    spec: Annotated[NodeGpusSpec, Meta(description="The node that is described.")]
    status: Annotated[NodeGpus, Meta(description="The GPUs of the node.")] = field(default_factory=NodeGpus)
