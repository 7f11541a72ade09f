"""Where the GPUs of a cluster are: Kubernetes, Slurm, Docker, this machine, the simulated fleet."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


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
