"""Where the nodes and workloads of a cluster come from: Kubernetes, Slurm, Docker or this machine."""

from dataclasses import dataclass
from pathlib import Path

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class KubernetesSettings:
    """The Kubernetes API to use, and its rate limits."""

    kubeconfig: Path | None = setting(
        None,
        "Kubeconfig file. Empty: the service account of the pod.",
        flag="--kubeconfig",
        env=["KUBECONFIG"],
    )
    context: str = setting("", "Context in the kubeconfig. Empty: the current one.", flag="--context")
    lease_namespace: str = setting(
        "default", "Namespace of the scheduler's GPU Leases.", flag="--lease-namespace"
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
        "Taints that mark a node as faulty; other taints do not affect its health.",
    )
    requests_per_second: float = setting(50.0, "Sustained rate of requests to the API.", minimum=0.1)
    max_cache_bytes: int = setting(
        56 * 1024 * 1024,
        "Estimated memory of all cached objects; a list or watch that needs more is an error. The default is for "
        "about 1,300 nodes with 8 GPUs. Raise it for larger clusters; the process needs three times as much memory.",
        unit="bytes",
        minimum=1024 * 1024,
    )


@dataclass(frozen=True)
class SlurmSettings:
    """A Slurm cluster, read through its commands or slurmrestd."""

    enabled: bool = setting(
        False, "Read Slurm with squeue, scontrol and sacct of this machine.", flag="--slurm"
    )
    url: str = setting(
        "",
        "slurmrestd to use instead of commands: http(s)://host:6820 or unix:///run/slurmrestd.sock.",
        flag="--slurm-url",
    )
    bin: Path | None = setting(None, "Directory of Slurm's commands. Empty: PATH.")
    conf: Path | None = setting(None, "slurm.conf for the commands (SLURM_CONF).", env=["SLURM_CONF"])
    user: str = setting("", "User name for slurmrestd. Empty: the user of the token.")
    token_file: Path | None = setting(
        None, "File with a token for slurmrestd (scontrol token); read for each request."
    )
    ca_file: Path | None = setting(None, "CA certificates of slurmrestd.")
    refresh: float = setting(15.0, "How often jobs and nodes are read.", unit="s", minimum=1)
    timeout: float = setting(
        20.0, "Longest time for one request; a command is killed then.", unit="s", minimum=0.1
    )
    history: float = setting(
        86400.0,
        "How far back ended jobs are read from Slurm's accounting database at the start; 0 to skip.",
        unit="s",
        minimum=0,
    )


@dataclass(frozen=True)
class DockerSettings:
    """A container engine: Docker, or Podman with its Docker API."""

    url: str = setting(
        "",
        "URL of the engine: unix:///var/run/docker.sock, https://host:2376 or http://127.0.0.1:2375.",
        flag="--docker",
    )
    node: str = setting("", "Name of the engine's machine. Empty: as the engine reports it.")
    gpus: int = setting(
        0, "GPUs of the engine's machine; 0 to count those in devices, readings or containers.", minimum=0
    )
    ca_file: Path | None = setting(None, "CA certificates of the engine.")
    cert_file: Path | None = setting(None, "Client certificate for the engine.")
    key_file: Path | None = setting(None, "Key of `cert_file`.")


@dataclass(frozen=True)
class LocalSettings:
    """This machine's own GPUs as a cluster, without any other software."""

    enabled: bool = setting(False, "Show the GPUs and GPU processes of this machine.", flag="--local")
    node: str = setting("", "Name of this machine in the fleet. Empty: its host name.")
    processes: bool = setting(True, "Show processes on the GPUs as workloads, one per session.")
    identify: bool = setting(True, "Also read user and command line of the processes on the GPUs.")
