"""The scheduler."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class SchedulerSettings:
    """How GPUs are allocated to pods."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on. Beyond loopback, the extender needs `tls_secret`; stand-alone mode does not.",
        flag="--host",
    )
    port: int = setting(
        8889, "Port of the extender; 0 picks a free one.", flag="--port", minimum=0, maximum=65535
    )
    metrics_port: int = setting(
        0,
        "Port for probes and metrics alone, without TLS. 0: they are only on `port`.",
        flag="--metrics-port",
        minimum=0,
        maximum=65535,
    )
    tls_secret: str = setting(
        "",
        "Secret in which the extender makes and renews its certificate, in the namespace of the Leases. "
        "kube-scheduler must present the same one. Empty: HTTP without TLS.",
        flag="--tls-secret",
    )
    kube_scheduler: str = setting(
        "", "Deployment of kube-scheduler, restarted when the extender has a new CA. Empty: none."
    )
    name: str = setting(
        "gpu-scheduler",
        "schedulerName of the pods that are scheduled; all others are refused.",
        flag="--scheduler-name",
    )
    delivery: str = setting(
        "extender",
        "How pods get the GPUs of their claims: by an extender of kube-scheduler and the vendor's container runtime, "
        "or by ResourceClaims (`dra`). `auto` takes `dra` if a DRA driver publishes GPUs.",
        flag="--delivery",
        choices=["extender", "dra", "auto"],
    )
    standalone: bool = setting(False, "Bind pods without a kube-scheduler.", flag="--standalone")
    direct_binding: bool = setting(
        True,
        "Bind pods of a long queue, if all of their constraints are checked here, without kube-scheduler.",
    )
    hold: float = setting(
        30.0, "How long GPUs are held for a pod between filter and bind.", unit="s", minimum=1
    )
    requests_per_second: float = setting(
        1000.0, "Sustained rate of requests to the API; a bound pod takes three.", minimum=0.1
    )
    preempt: bool = setting(True, "Evict pods of lower priority for GPUs where kube-scheduler can't.")
    reservations: int = setting(
        4,
        "Units at the head of the queue for which GPUs are kept until all of them are free; 0 keeps none.",
        minimum=0,
    )
    topology_levels: tuple[str, ...] = setting(
        (
            "topology.kubernetes.io/zone",
            "topology.kubernetes.io/block",
            "topology.kubernetes.io/rack",
            "nvidia.com/gpu.clique",
            "kubernetes.io/hostname",
        ),
        "Node labels that group nodes by their network, the widest first. Claims name one of them.",
    )
    gang_grace: float = setting(
        300.0,
        "How long a gang may run with fewer members than it needs before it is ended as a whole.",
        unit="s",
        minimum=0,
    )
    reclaim_grace: float = setting(
        120.0,
        "Longest time that pods on borrowed GPUs, or of a queue whose hard budget is used up, have to terminate.",
        unit="s",
        minimum=0,
    )
    share_half_life: float = setting(
        7 * 86400.0,
        "Time after which use counts half in the order between GpuQueues.",
        unit="s",
        minimum=60,
        maximum=366 * 86400,
    )
    server_url: str = setting(
        "",
        "URL of the gpufleet server, whose accounting gives the use of namespaces for shares and budgets of GpuQueues. "
        "Empty: the scheduler counts what it sees itself.",
    )
    server_cluster: str = setting(
        "", "Name of this cluster on the server. Empty: the server's default cluster."
    )
    server_token_file: Path | None = setting(
        None, "File with the bearer token for the server; read for each request."
    )
    server_ca_file: Path | None = setting(None, "CA certificates of the server.")
    server_refresh: float = setting(60.0, "How often the use is read from the server.", unit="s", minimum=1)
