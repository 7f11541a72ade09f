"""The agent on each node."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class AgentSettings:
    """What the agent on each node reads, publishes and serves."""

    node: str = setting("", "Name of this node. Empty: the host name.", flag="--node", env=["NODE_NAME"])
    host: str = setting("127.0.0.1", "Address of /metrics, /livez and /readyz.", flag="--host")
    port: int = setting(
        9401,
        "Port of /metrics, /livez and /readyz; 0 picks a free one.",
        flag="--port",
        minimum=0,
        maximum=65535,
    )
    kubernetes: str = setting(
        "auto",
        "Publish a GpuNodeStatus: auto does so in a pod or with a kubeconfig; off only serves metrics.",
        flag="--kubernetes",
        choices=["auto", "on", "off"],
    )
    period: float = setting(15.0, "How often the GPUs are read.", unit="s", minimum=0.1)
    health_period: float = setting(
        1.0,
        "How often network ports and the driver's health flags are compared with the last read; a change is read and "
        "published at once.",
        unit="s",
        minimum=0.1,
    )
    kubelet: Path | None = setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        "The kubelet's PodResources socket, for pods with GPUs from a device plugin. Empty: not used.",
    )
    extended_resources: bool = setting(
        True,
        "Publish the GPUs in the status of the Node as gpu.scheduling/gpu, gpu-share and mig, for requests that the "
        "webhook adds to pods with a claim.",
    )
    dra: bool = setting(
        False,
        "Serve as DRA driver gpu.scheduling: publish the GPUs in ResourceSlices and prepare ResourceClaims. "
        "Only on nodes without a vendor's DRA driver.",
    )
    kubelet_root: Path = setting(
        Path("/var/lib/kubelet"), "The kubelet's root directory, in which a DRA driver registers."
    )
    slurm_drain: bool = setting(
        False,
        "On a node of Slurm: drain it while a GPU is Unhealthy, and resume it when `gpufleet diag` has passed twice. "
        "Needs a user who may change nodes.",
    )
    processes: bool = setting(
        True, "Serve metrics of processes on the GPUs (user and command only with devices.identify)."
    )
    pod_logs: Path | None = setting(
        Path("/var/log/pods"), "Directory of the logs of this node's pods; ignored if it does not exist."
    )
