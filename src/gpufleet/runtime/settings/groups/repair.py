"""The repair controller and its alerts."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class RepairSettings:
    """What happens to nodes with unhealthy GPUs."""

    policy: str = setting(
        "observe",
        "How far the controller goes: conditions and events only, also taint the node, also evict affected pods, also "
        "run repair Jobs.",
        flag="--policy",
        choices=["observe", "cordon", "drain", "repair"],
    )
    host: str = setting("127.0.0.1", "Address of /metrics, /livez and /readyz.", flag="--host")
    port: int = setting(
        8891,
        "Port of /metrics, /livez and /readyz; 0 picks a free one.",
        flag="--port",
        minimum=0,
        maximum=65535,
    )
    templates: Path | None = setting(
        None,
        "Directory of Job templates: prove.yaml, reset.yaml, reload-driver.yaml, reboot.yaml, vendor.yaml.",
    )
    taint_gpu_faults: bool = setting(
        True,
        "Taint the node also if only some of its GPUs are faulty. Off: its other GPUs stay in use by claims and DRA.",
    )
    proofs: int = setting(2, "Tests that must pass in a row before a node is returned.", minimum=0)
    settle: float = setting(
        30.0, "How long a finding must be gone before the node is tested.", unit="s", minimum=0
    )
    max_attempts: int = setting(3, "Repairs that are tried before a human is asked.", minimum=0)
    max_grace: float = setting(1800.0, "Longest checkpoint grace of a pod.", unit="s", minimum=0)
    drain_timeout: float = setting(
        3600.0, "How long pods may take to leave before a human is asked.", unit="s", minimum=1
    )
    repair_timeout: float = setting(
        1800.0, "How long a repair or test may take before it counts as failed.", unit="s", minimum=1
    )
    flap_limit: int = setting(
        3, "Faults of a node within 24 hours after which the next one goes to a human.", minimum=1
    )
    max_share: float = setting(
        10.0,
        "Percentage of the nodes with GPUs that may be drained, repaired or tested together; at least one may.",
        minimum=0,
        maximum=100,
    )
    max_per_hour: int = setting(10, "Nodes that may be drained in an hour.", minimum=0)
    server_url: str = setting(
        "",
        "URL of the gpufleet server, whose stragglers are evicted if their pods ask for it. Empty: none are evicted.",
    )
    server_cluster: str = setting(
        "", "Name of this cluster on the server. Empty: the server's default cluster."
    )
    server_token_file: Path | None = setting(
        None, "File with the bearer token for the server; read for each request."
    )


@dataclass(frozen=True)
class AlertSettings:
    """Where faults and repairs are reported."""

    severity: str = setting(
        "Degraded",
        "Least severity of findings that are reported. Unhealthy: only GPUs that are taken out of service.",
        choices=["Warning", "Degraded", "Unhealthy"],
    )
    webhook: str = setting(
        "", "URL of a Slack-compatible webhook. Its path is usually a secret.", secret=True
    )
    alertmanager: str = setting("", "URL of an Alertmanager, such as http://alertmanager:9093.")
    smtp: str = setting("", "Host and port of a mail server, such as mail:25; TLS is used if it is offered.")
    mail_from: str = setting("gpufleet@localhost", "Sender of mails.")
    mail_to: tuple[str, ...] = setting((), "Receivers of mails.")
