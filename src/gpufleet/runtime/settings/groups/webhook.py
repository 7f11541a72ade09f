"""The admission webhook."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class WebhookSettings:
    """Where the admission webhook listens, its certificate, and what it does to pods."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on; use 0.0.0.0 in a pod, so that the API server reaches it.",
        flag="--host",
    )
    port: int = setting(
        8443, "Port to listen on; 0 picks a free one.", flag="--port", minimum=0, maximum=65535
    )
    certificate_file: Path | None = setting(
        None,
        "Certificate chain, reloaded when it changes (for example from cert-manager). "
        "Empty: the webhook makes its own.",
        flag="--certificate-file",
    )
    key_file: Path | None = setting(None, "Key of the certificate.", flag="--key-file")
    namespace: str = setting(
        "default", "Namespace of the webhook's Secret and Service.", flag="--namespace", env=["POD_NAMESPACE"]
    )
    secret: str = setting(
        "gpufleet-webhook-tls", "Secret in which replicas share their certificate.", flag="--secret"
    )
    service: str = setting(
        "gpufleet-webhook", "Service through which the API server reaches the webhook.", flag="--service"
    )
    names: tuple[str, ...] = setting((), "Additional names and addresses in the certificate.", flag="--names")
    configurations: tuple[str, ...] = setting(
        ("gpufleet-webhook",),
        "Webhook configurations (mutating and validating) whose caBundle is kept up to date.",
        flag="--configurations",
    )
    lifetime: float = setting(
        90 * 86400.0,
        "Lifetime of a serving certificate; a CA lives ten times as long.",
        unit="s",
        minimum=10,
    )
    check: float = setting(60.0, "How often certificates and caBundle are checked.", unit="s", minimum=0.1)
    schedulers: tuple[str, ...] = setting(
        (),
        "Kubernetes users that may set allocated GPUs outside of a binding, such as "
        "system:serviceaccount:NAMESPACE:NAME.",
        flag="--schedulers",
    )
    variables: tuple[str, ...] = setting(
        ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        "Environment variables with the GPUs of a container: NVIDIA_VISIBLE_DEVICES and AMD_VISIBLE_DEVICES for the "
        "vendor's container runtime, the others for programs. Of those for programs, use ROCR_VISIBLE_DEVICES only "
        "alone: it renumbers GPUs.",
        choices=[
            "NVIDIA_VISIBLE_DEVICES",
            "CUDA_VISIBLE_DEVICES",
            "AMD_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
        ],
    )
    scheduler_name: str = setting(
        "gpu-scheduler",
        "schedulerName of pods with a claim, if neither they nor the claim name one.",
        flag="--scheduler-name",
    )
    delivery: str = setting(
        "extender",
        "How pods get the GPUs of their claims, as `scheduler.delivery`. `auto` does what the scheduler has chosen.",
        flag="--delivery",
        choices=["extender", "dra", "auto"],
    )
    runtime_class: str = setting(
        "",
        "Runtime class of pods with a claim, such as nvidia, if they name none. Empty: the nodes' default runtime.",
        flag="--runtime-class",
    )
    device_requests: str = setting(
        "replace",
        "What happens to a pod that has a claim and also requests GPUs from a device plugin. `replace` removes a request "
        "for as many GPUs (nvidia.com/gpu or amd.com/gpu) as the claim has, and refuses others.",
        choices=["replace", "refuse", "warn"],
    )
    extended_resources: bool = setting(
        False,
        "Add a request for the extended resource of its claim, such as gpu.scheduling/gpu, to a pod, so that "
        "ResourceQuota, Kueue, kubelets and autoscalers count it. kube-scheduler must ignore these resources "
        "(docs/scheduling.md).",
        flag="--extended-resources",
    )
    claim_taint: str = setting(
        "gpu.scheduling/claims",
        "Key of the taint on nodes that belong to claims; pods with a claim get a toleration of it. Empty: none.",
        flag="--claim-taint",
    )
    keep_nodes: bool = setting(
        True,
        "Annotate pods with a claim so that Cluster Autoscaler and Karpenter do not remove their nodes, unless the "
        "pods have these annotations.",
        flag="--keep-nodes",
    )
