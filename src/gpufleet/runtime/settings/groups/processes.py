"""The processes beside the server: scheduler, agent and webhook."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class SchedulerSettings:
    """How GPUs are handed out."""

    host: str = setting("127.0.0.1", "Address on which kube-scheduler finds the extender.", flag="--host")
    port: int = setting(
        8889, "Port of the extender; 0 takes a free one.", flag="--port", minimum=0, maximum=65535
    )
    name: str = setting(
        "gpu-scheduler", "schedulerName of the pods that the stand-alone loop binds.", flag="--scheduler-name"
    )
    standalone: bool = setting(False, "Bind pods without a kube-scheduler.", flag="--standalone")
    hold: float = setting(
        30.0, "How long GPUs chosen for a pod are kept before it is bound.", unit="s", minimum=1
    )
    grace: float = setting(30.0, "How long a pod keeps leases without being bound.", unit="s", minimum=0)
    permit: float = setting(
        10.0, "How long the bind of a gang's member waits for the others.", unit="s", minimum=0
    )
    requests_per_second: float = setting(
        1000.0, "Sustained rate of requests to the API; three for each pod that is bound.", minimum=0.1
    )
    burst: int = setting(2000, "Requests that may exceed the rate at once.", minimum=1)
    preempt: bool = setting(
        True, "Evict pods of lower priority for GPUs, where kube-scheduler can't see the need."
    )
    max_body_bytes: int = setting(
        64 * 1024 * 1024, "Largest question that is read from kube-scheduler.", unit="bytes", minimum=1024
    )


@dataclass(frozen=True)
class AgentSettings:
    """What the agent on each node reads, tells and serves."""

    node: str = setting("", "Name of this node; the host name if empty.", flag="--node", env=["NODE_NAME"])
    host: str = setting("127.0.0.1", "Address of /metrics, /livez and /readyz.", flag="--host")
    port: int = setting(
        9401, "Port of the same; 0 takes a free one.", flag="--port", minimum=0, maximum=65535
    )
    kubernetes: str = setting(
        "auto",
        "Publish GpuNodeStatus: auto does in a pod or with a kubeconfig; off only serves metrics.",
        flag="--kubernetes",
        choices=["auto", "on", "off"],
    )
    period: float = setting(15.0, "How often the GPUs are read.", unit="s", minimum=0.1)
    heartbeat: float = setting(
        600.0,
        "How often the status is put right although nothing changed; a tenth more or less by chance.",
        unit="s",
        minimum=1,
    )
    lease_check: float = setting(
        120.0,
        "How often the leases of this node's GPUs are read although no pod came or went.",
        unit="s",
        minimum=0.1,
    )
    kubelet: Path | None = setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        "The kubelet's PodResources socket, which tells the pods that got GPUs from a device plugin; empty: not asked.",
    )
    processes: bool = setting(
        True, "Serve metrics of the processes on the GPUs (user and command only with devices.identify)."
    )
    max_processes: int = setting(
        256, "Processes that metrics tell of; those with the most GPU memory first.", minimum=0
    )
    pod_logs: Path | None = setting(
        Path("/var/log/pods"), "Where the logs of this node's pods are; not followed if it isn't there."
    )


@dataclass(frozen=True)
class WebhookSettings:
    """Where the admission webhook listens, and how it comes by its certificate."""

    host: str = setting(
        "127.0.0.1", "Address to listen on; 0.0.0.0 in a pod, for the API server to reach it.", flag="--host"
    )
    port: int = setting(
        8443, "Port to listen on; 0 takes a free one.", flag="--port", minimum=0, maximum=65535
    )
    certificate_file: Path | None = setting(
        None,
        "Certificate chain to serve with, read again when it changes (cert-manager, for one). "
        "Empty: the webhook makes its own.",
        flag="--certificate-file",
    )
    key_file: Path | None = setting(None, "Key of the certificate.", flag="--key-file")
    namespace: str = setting(
        "default", "Namespace of the webhook's Secret and Service.", flag="--namespace", env=["POD_NAMESPACE"]
    )
    secret: str = setting(
        "gpufleet-webhook-tls", "Secret in which replicas share their own certificates.", flag="--secret"
    )
    service: str = setting(
        "gpufleet-webhook", "Service by which the API server reaches the webhook.", flag="--service"
    )
    names: tuple[str, ...] = setting(
        (), "Further names and addresses that the certificate is for.", flag="--names"
    )
    configurations: tuple[str, ...] = setting(
        ("gpufleet-webhook",),
        "Webhook configurations (mutating and validating) whose caBundle is kept right.",
        flag="--configurations",
    )
    lifetime: float = setting(
        90 * 86400.0,
        "How long a serving certificate is good for; a CA is for ten times that.",
        unit="s",
        minimum=10,
    )
    check: float = setting(60.0, "How often certificates and caBundle are looked at.", unit="s", minimum=0.1)
    drain: float = setting(
        5.0,
        "How long calls are still answered after SIGTERM, until no API server comes any more.",
        unit="s",
        minimum=0,
    )
    schedulers: tuple[str, ...] = setting(
        (),
        "Kubernetes users whose word on allocated GPUs is taken outside of a binding, such as "
        "system:serviceaccount:NAMESPACE:NAME.",
        flag="--schedulers",
    )
    variables: tuple[str, ...] = setting(
        ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        "Variables that tell containers their GPUs. ROCR_VISIBLE_DEVICES only instead of the others: it renumbers.",
        choices=["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"],
    )
    device_requests: str = setting(
        "refuse",
        "What happens to a pod with a claim that also asks the device plugin for GPUs.",
        choices=["refuse", "warn"],
    )
