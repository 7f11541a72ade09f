"""The groups of settings, in the order of the reference page.

A name or number that an operator may want to change stands here with its unit and the
reason for its default; code gets the group it needs as an argument and reads nothing else.
"""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.settings.field import setting


@dataclass(frozen=True)
class ServerSettings:
    """Where the server listens and what it lets in."""

    host: str = setting(
        "127.0.0.1", "Address to listen on. Any other than loopback needs authentication.", flag="--host"
    )
    port: int = setting(
        8080, "Port to listen on; 0 takes a free one.", flag="--port", env=["PORT"], minimum=0, maximum=65535
    )
    insecure: bool = setting(False, "Serve other addresses than loopback without login.", flag="--insecure")
    debug: bool = setting(False, "Serve /debug/vars and /debug/pprof on loopback.", flag="--debug")
    cors_origins: tuple[str, ...] = setting(
        (), "Origins whose pages may call the API from a browser.", flag="--cors-origins"
    )
    max_body_bytes: int = setting(
        4 * 1024 * 1024, "Largest request body; larger ones get a 413.", unit="bytes", minimum=1024
    )
    request_timeout: float = setting(
        30.0,
        "Longest time that one request may take before it is answered with a 503.",
        unit="s",
        minimum=0.1,
    )
    max_requests: int = setting(512, "Requests in work at once; more get a 503 with Retry-After.", minimum=1)
    shutdown_grace: float = setting(
        20.0, "Time that requests in flight get to finish after SIGTERM.", unit="s", minimum=0
    )


@dataclass(frozen=True)
class AuthSettings:
    """Who may call the API."""

    tokens_file: Path | None = setting(
        None,
        "File of hashed bearer tokens with their roles; read again when it changes.",
        flag="--tokens-file",
    )
    token_review: bool = setting(
        False, "Ask the Kubernetes API who a bearer token belongs to (TokenReview).", flag="--token-review"
    )
    operators: tuple[str, ...] = setting(
        (), "Kubernetes users and groups with the role operator; all others that log in are viewers."
    )
    review_cache: float = setting(60.0, "How long an answer of TokenReview is trusted.", unit="s", minimum=0)
    workload_key_file: Path | None = setting(
        None,
        "Key that the tokens of workloads are signed with. Without one, a file in `store.data` is made; "
        "servers of one database need the same.",
    )


@dataclass(frozen=True)
class LogSettings:
    """What is logged, and how."""

    level: str = setting(
        "info",
        "Least severe level that is logged.",
        flag="--log-level",
        env=["LOG_LEVEL"],
        choices=["debug", "info", "warning", "error"],
    )
    format: str = setting(
        "auto",
        "console for people, json for collectors; auto picks console at a terminal.",
        flag="--log-format",
        choices=["auto", "console", "json"],
    )


@dataclass(frozen=True)
class StoreSettings:
    """Where accounting and history are kept."""

    url: str = setting(
        "",
        "PostgreSQL 14 or newer, as postgresql://user@host/database. Empty: an embedded server in `data`.",
        env=["DATABASE_URL"],
        secret=True,
    )
    data: Path = setting(
        Path("gpufleet-data"),
        "Directory of the embedded server and other state.",
        flag="--data",
        env=["GPUFLEET_DATA"],
    )
    pool_size: int = setting(10, "Connections to the database.", minimum=2, maximum=100)
    query_timeout: float = setting(20.0, "Longest time that one query may take.", unit="s", minimum=0.1)
    retry_timeout: float = setting(
        10.0, "How long a lost connection is tried again before a caller hears of it.", unit="s", minimum=0
    )
    start_timeout: float = setting(
        60.0, "How long the server waits for the database when it starts.", unit="s", minimum=1
    )


@dataclass(frozen=True)
class MetricsSettings:
    """Where readings come from."""

    url: str = setting(
        "",
        "Prometheus, Thanos, Mimir or VictoriaMetrics. Empty: readings are kept in the store.",
        flag="--prometheus-url",
        env=["PROMETHEUS_URL"],
    )
    bearer_token_file: Path | None = setting(None, "File with the bearer token for the metric source.")
    username: str = setting("", "User name for basic authentication at the metric source.")
    password_file: Path | None = setting(None, "File with the password that belongs to `username`.")
    ca_file: Path | None = setting(None, "Certificates that sign the metric source's own.")
    headers: tuple[str, ...] = setting(
        (), "Further request headers as `Name: value` (a tenant of Mimir, for one).", secret=True
    )
    timeout: float = setting(10.0, "Longest time that one query may take.", unit="s", minimum=0.1)
    max_queries: int = setting(8, "Queries at the metric source at once.", minimum=1, maximum=100)
    refresh: float = setting(15.0, "How often the latest readings are fetched.", unit="s", minimum=1)
    retention: float = setting(
        86400.0, "How long readings are kept in the store, if that is where they are.", unit="s", minimum=3600
    )
    training_retention: float = setting(
        30 * 86400.0, "How long the numbers that training jobs report are kept.", unit="s", minimum=3600
    )
    vocabularies: tuple[str, ...] = setting(
        (),
        "Exporters to read; all that are found if empty.",
        choices=["gpufleet", "dcgm", "amd", "nvidia-smi", "all-smi"],
    )
    detect: float = setting(
        300.0, "How often the metric source is asked which exporters there are.", unit="s", minimum=1
    )
    max_answer_bytes: int = setting(
        256 * 1024 * 1024, "Largest answer that is taken from the metric source.", unit="bytes", minimum=1024
    )
    cache_bytes: int = setting(
        64 * 1024 * 1024, "Memory for series that were asked for lately.", unit="bytes", minimum=0
    )


@dataclass(frozen=True)
class TrainingSettings:
    """How the logs of training jobs are read."""

    patterns: tuple[str, ...] = setting(
        (),
        "Further lines to read numbers from: regular expressions whose named groups are metrics, "
        "such as `^update (?P<step>\\d+) xent=(?P<loss>[\\d.]+)`.",
    )


@dataclass(frozen=True)
class AccountingSettings:
    """What the use of GPUs is broken down by, what it costs, and how long it is kept."""

    label_keys: tuple[str, ...] = setting((), "Labels of pods and workloads that statistics are kept by.")
    annotation_keys: tuple[str, ...] = setting((), "Annotations that statistics are kept by.")
    excluded_namespaces: tuple[str, ...] = setting(
        (), "Namespaces that count in the cluster and have no statistics of their own."
    )
    missing_value: str = setting("(none)", "Value of a label for those who don't have it.")
    prices: dict[str, float] = setting({}, "Price of one GPU for one hour, by GPU model.")
    snapshot_period: float = setting(
        300.0, "Time between snapshots; a whole part of an hour.", unit="s", minimum=10, maximum=3600
    )
    snapshot_retention: float = setting(30 * 86400.0, "How long snapshots are kept.", unit="s", minimum=7200)
    workload_retention: float = setting(
        400 * 86400.0, "How long the hours of workloads are kept.", unit="s", minimum=86400
    )
    hour_retention: float = setting(
        1100 * 86400.0,
        "How long the hours of clusters, namespaces and labels, and the days of reports are kept.",
        unit="s",
        minimum=86400,
    )
    holding_retention: float = setting(
        100 * 86400.0,
        "How long is known who held which GPU when; older hours can't be computed again.",
        unit="s",
        minimum=86400,
    )
    ended_retention: float = setting(
        400 * 86400.0, "How long workloads are kept that are over.", unit="s", minimum=86400
    )


@dataclass(frozen=True)
class KubernetesSettings:
    """Which Kubernetes API is spoken to, and how hard."""

    kubeconfig: Path | None = setting(
        None,
        "Kubeconfig file; without one, the pod's service account.",
        flag="--kubeconfig",
        env=["KUBECONFIG"],
    )
    context: str = setting("", "Context of the kubeconfig; its current one if empty.", flag="--context")
    lease_namespace: str = setting(
        "default", "Namespace of the scheduler, where its leases of GPUs are.", flag="--lease-namespace"
    )
    fault_taints: tuple[str, ...] = setting(
        (
            "node.kubernetes.io/not-ready",
            "node.kubernetes.io/unreachable",
            "node.kubernetes.io/out-of-service",
            "gpu.scheduling/unhealthy",
            "nvidia.com/gpu-unhealthy",
            "amd.com/gpu-unhealthy",
        ),
        "Taints that say that a node is broken; any other keeps pods off a healthy one.",
    )
    requests_per_second: float = setting(50.0, "Sustained rate of requests to the API.", minimum=0.1)
    burst: int = setting(100, "Requests that may exceed the rate at once.", minimum=1)
    timeout: float = setting(
        15.0, "Longest time that one request may take (a watch excepted).", unit="s", minimum=0.1
    )


@dataclass(frozen=True)
class DevicesSettings:
    """How the GPUs of this machine are read and judged."""

    reader: str = setting(
        "auto",
        "Which driver is asked; auto takes the first that lists a GPU.",
        choices=["auto", "nvml", "amdsmi", "simulated"],
    )
    deadline: float = setting(
        5.0,
        "Longest time that the driver may take before its GPUs are Unknown.",
        unit="s",
        minimum=0.1,
    )
    identify: bool = setting(False, "Also read the user and the command line of processes on the GPUs.")
    kernel_log: bool = setting(True, "Read XIDs from /dev/kmsg too, where this process may.")
    warn_xids: tuple[str, ...] = setting(
        ("63", "92", "94", "109"), "XIDs that only warn; any other serious one takes its GPU out."
    )
    ecc_threshold: int = setting(
        0, "Uncorrectable errors in one block of an AMD GPU above which it is out.", minimum=0
    )


@dataclass(frozen=True)
class DemoSettings:
    """The simulated fleet of `gpufleet demo`."""

    nodes: int = setting(32, "Nodes of the simulated fleet.", flag="--nodes", minimum=1, maximum=2000)
    gpus: int = setting(8, "GPUs on each of its nodes.", flag="--gpus", minimum=1, maximum=16)
    seed: int = setting(1, "The same seed at the same time shows the same fleet.", flag="--seed", minimum=0)
    days: float = setting(
        7.0, "Days of history it begins with; shorter above 32 nodes.", flag="--days", minimum=0, maximum=30
    )
    kube_port: int = setting(
        0,
        "Port of its Kubernetes-shaped API; 0 takes a free one.",
        flag="--kube-port",
        minimum=0,
        maximum=65535,
    )


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
class SlurmSettings:
    """A Slurm cluster to follow, through its commands or slurmrestd."""

    enabled: bool = setting(
        False, "Follow Slurm through squeue, scontrol and sacct of this machine.", flag="--slurm"
    )
    url: str = setting(
        "",
        "slurmrestd to ask instead of commands: http(s)://host:6820 or unix:///run/slurmrestd.sock.",
        flag="--slurm-url",
    )
    bin: Path | None = setting(None, "Directory of Slurm's commands; those on PATH if empty.")
    conf: Path | None = setting(None, "slurm.conf for the commands (SLURM_CONF).", env=["SLURM_CONF"])
    user: str = setting("", "User that slurmrestd takes the token for; the token's own if empty.")
    token_file: Path | None = setting(
        None, "File with a token for slurmrestd (scontrol token); read again for each question."
    )
    ca_file: Path | None = setting(None, "Certificates that sign slurmrestd's own.")
    refresh: float = setting(15.0, "How often jobs and nodes are asked for.", unit="s", minimum=1)
    timeout: float = setting(
        20.0, "Longest time that one question may take; a command is killed then.", unit="s", minimum=0.1
    )
    history: float = setting(
        86400.0,
        "How far back the accounting database is asked for ended jobs at the start; 0 for not at all.",
        unit="s",
        minimum=0,
    )
    max_answer_bytes: int = setting(
        256 * 1024 * 1024, "Largest answer that is taken from Slurm.", unit="bytes", minimum=1024
    )


@dataclass(frozen=True)
class DockerSettings:
    """A container engine to follow: Docker, or Podman with its Docker API."""

    url: str = setting(
        "",
        "Engine to follow: unix:///var/run/docker.sock, https://host:2376 or http://127.0.0.1:2375.",
        flag="--docker",
    )
    node: str = setting("", "Name of the engine's machine; what the engine says if empty.")
    gpus: int = setting(
        0, "GPUs of the engine's machine; 0 for as many as devices, readings or containers show.", minimum=0
    )
    ca_file: Path | None = setting(None, "Certificates that sign the engine's own.")
    cert_file: Path | None = setting(None, "Our certificate for an engine that asks for one.")
    key_file: Path | None = setting(None, "The key that belongs to `cert_file`.")
    refresh: float = setting(
        30.0, "How often all containers are listed; changes are heard of at once.", unit="s", minimum=1
    )
    timeout: float = setting(10.0, "Longest time that one question may take.", unit="s", minimum=0.1)


@dataclass(frozen=True)
class LocalSettings:
    """This machine's own GPUs as a cluster, with nothing else installed."""

    enabled: bool = setting(False, "Show the GPUs and GPU processes of this machine.", flag="--local")
    node: str = setting("", "Name of this machine in the fleet; its host name if empty.")
    refresh: float = setting(15.0, "How often the GPUs are read.", unit="s", minimum=1)
    processes: bool = setting(True, "Show processes on the GPUs as workloads, one for each session.")
    identify: bool = setting(True, "Also read the user and the command line of processes on the GPUs.")


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
        Path("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"),
        "Where the kubelet writes down which pod got which device of a plugin; not read if it isn't there.",
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


GROUPS: dict[str, type] = {
    "server": ServerSettings,
    "auth": AuthSettings,
    "log": LogSettings,
    "store": StoreSettings,
    "metrics": MetricsSettings,
    "accounting": AccountingSettings,
    "training": TrainingSettings,
    "kubernetes": KubernetesSettings,
    "devices": DevicesSettings,
    "demo": DemoSettings,
    "scheduler": SchedulerSettings,
    "slurm": SlurmSettings,
    "docker": DockerSettings,
    "local": LocalSettings,
    "agent": AgentSettings,
    "webhook": WebhookSettings,
}
"""Every group by the name of its table in `gpufleet.toml`."""

CLUSTER_GROUPS = ("metrics", "kubernetes", "accounting", "slurm", "docker", "local")
"""Groups that each cluster may have of its own, as `[clusters.NAME.GROUP]`."""
