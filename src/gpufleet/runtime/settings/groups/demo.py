"""The simulated fleet."""

from dataclasses import dataclass

from gpufleet.runtime.settings.field import setting


@dataclass(frozen=True)
class DemoSettings:
    """The simulated fleet of `gpufleet demo`."""

    nodes: int = setting(32, "Number of nodes.", flag="--nodes", minimum=1, maximum=2000)
    gpus: int = setting(8, "GPUs per node.", flag="--gpus", minimum=1, maximum=16)
    seed: int = setting(
        1,
        "Seed of the simulation; the same seed at the same time shows the same fleet.",
        flag="--seed",
        minimum=0,
    )
    days: float = setting(
        7.0, "Days of history at the start; fewer above 32 nodes.", flag="--days", minimum=0, maximum=30
    )
    kube_port: int = setting(
        0,
        "Port of the embedded Kubernetes-shaped API; 0 picks a free one.",
        flag="--kube-port",
        minimum=0,
        maximum=65535,
    )
