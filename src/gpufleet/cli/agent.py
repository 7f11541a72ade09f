"""Run the agent of this node: GPU inventory, health, metrics and training logs.

In a pod, or with --kubeconfig, it publishes the GPUs of the node as a GpuNodeStatus. Elsewhere it only
serves metrics:

  gpufleet agent                                    # metrics on 127.0.0.1:9401
  gpufleet agent --once                             # read once, print the metrics, and exit
  gpufleet agent --host 0.0.0.0 --devices-identify  # reachable by Prometheus, with users and commands
"""

import argparse

from gpufleet.runtime.settings import (
    AgentSettings,
    DevicesSettings,
    KubernetesSettings,
    Settings,
    SlurmSettings,
    TrainingSettings,
)

GROUPS: tuple[type, ...] = (
    AgentSettings,
    DevicesSettings,
    KubernetesSettings,
    SlurmSettings,
    TrainingSettings,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag for a single read."""
    parser.add_argument(
        "--once", action="store_true", help="Read the GPUs once, print the metrics, and exit."
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Read, publish and serve until a signal arrives."""
    from gpufleet.agent.memory import limit_arenas

    limit_arenas()
    from gpufleet.agent.process import read_once, run_agent
    from gpufleet.runtime.process import run_until_stopped

    if arguments.once:
        import asyncio

        metrics, answered = asyncio.run(read_once(settings))
        print(metrics, end="")
        return 0 if answered else 1
    # With the default loop: uvloop would cost memory on every node and save little.
    return run_until_stopped(
        lambda _stopper: run_agent(
            settings, lambda node, url: print(f"gpufleet agent of {node} serves on {url}", flush=True)
        )
    )
