"""Run the agent of this node: GPU inventory, health, metrics and training logs.

In a pod, or with --kubeconfig, it publishes the GPUs of the node as a GpuNodeStatus. Elsewhere it only
serves metrics:

  gpufleet agent                                    # metrics on 127.0.0.1:9401
  gpufleet agent --once                                      # read once, print a table, and exit
  gpufleet agent --once -o prometheus                        # print the metrics that it would serve
  gpufleet agent --host 0.0.0.0 --set devices.identify=true  # reachable by Prometheus, with users and commands
"""

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpufleet.runtime.settings import (
    AgentSettings,
    DevicesSettings,
    KubernetesSettings,
    Settings,
    SlurmSettings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from gpufleet.agent.monitor import Observation

GROUPS: tuple[type, ...] = (
    AgentSettings,
    DevicesSettings,
    KubernetesSettings,
    SlurmSettings,
    TrainingSettings,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a single read."""
    parser.add_argument("--once", action="store_true", help="Read the GPUs once, print them, and exit.")
    parser.add_argument(
        "-o",
        "--output",
        choices=("table", "wide", "json", "prometheus"),
        default="table",
        help="Format of --once; prometheus is the text that it serves (default: table).",
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Read, publish and serve until a signal arrives."""
    from gpufleet.agent.memory import limit_arenas

    limit_arenas()
    from gpufleet.agent.process import read_once, run_agent
    from gpufleet.runtime.process import run_until_stopped

    if arguments.once:
        import asyncio

        from gpufleet.runtime.logs import configure_logs

        configure_logs("error", "console")  # the output says what is wrong
        return asyncio.run(read_once(settings, _printer(arguments.output)))
    # With the default loop: uvloop would cost memory on every node and save little.
    return run_until_stopped(
        lambda _stopper: run_agent(
            settings, lambda node, url: print(f"gpufleet agent of {node} serves on {url}", flush=True)
        )
    )


def _printer(output: str) -> Callable[["Observation", bytes], None]:
    """Return what prints a single read."""

    def show(observation: "Observation", metrics: bytes) -> None:
        from gpufleet.agent.table import gpu_table, gpus_json

        if output == "prometheus":
            print(metrics.decode(), end="")
        elif output == "json":
            print(gpus_json(observation))
        elif observation.problem:
            print(observation.problem, file=sys.stderr)
        else:
            print(gpu_table(observation, wide=output == "wide"), end="")

    return show
