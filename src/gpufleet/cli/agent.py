"""Run the agent of this node: GPU inventory, health, metrics and training logs.

In a pod, or with --kubeconfig, it publishes the GPUs of the node as a GpuNodeStatus. Anywhere else it
only serves metrics:

  gpufleet agent                                    # metrics on 127.0.0.1:9401
  gpufleet agent --once                             # look once, print what there is, and exit
  gpufleet agent --host 0.0.0.0 --devices-identify  # for Prometheus elsewhere, with users and commands
"""

import argparse
import asyncio
import os
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING

from gpufleet.runtime.settings import (
    AgentSettings,
    DevicesSettings,
    KubernetesSettings,
    Settings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from gpufleet.agent.agent import Agent

GROUPS: tuple[type, ...] = (AgentSettings, DevicesSettings, KubernetesSettings, TrainingSettings)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the single look."""
    parser.add_argument(
        "--once", action="store_true", help="Look at the GPUs once, print the metrics, and exit."
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Look, publish and serve until a signal says stop."""
    from gpufleet.agent.memory import start_small

    start_small()
    with asyncio.Runner() as runner:
        return runner.run(_once(settings) if arguments.once else _serve(settings))


async def _once(settings: Settings) -> int:
    agent = _agent(settings)
    try:
        await agent.lookout.look()
        print(agent.exporter.text().decode(), end="")
        return 1 if agent.lookout.sight.silence else 0
    finally:
        await agent.close()


async def _serve(settings: Settings) -> int:
    from gpufleet.kubernetes import KubeClient
    from gpufleet.runtime.background import Background

    async with AsyncExitStack() as closing:
        stop = closing.enter_context(_stop_on_signals())
        client = None
        if publishes(settings, os.environ):
            client = await closing.enter_async_context(KubeClient.from_settings(settings[KubernetesSettings]))
        agent = _agent(settings, client)
        closing.push_async_callback(agent.close)
        address = await closing.enter_async_context(agent.serving())
        background = await closing.enter_async_context(Background())
        for name, work in agent.tasks().items():
            background.start(name, work)
        print(f"gpufleet agent of {agent.node} serves on {address}", flush=True)
        await stop.wait()
    return 0


def _agent(settings: Settings, client: "object | None" = None) -> "Agent":
    from gpufleet.agent.agent import Agent
    from gpufleet.kubernetes import KubeClient
    from gpufleet.training.user_patterns import compile_user_patterns

    assert client is None or isinstance(client, KubeClient)
    node = settings[AgentSettings].node or socket.gethostname().lower()
    return Agent(
        node,
        settings[AgentSettings],
        settings[DevicesSettings],
        client,
        settings[KubernetesSettings].lease_namespace,
        patterns=compile_user_patterns(settings[TrainingSettings].patterns),
    )


def publishes(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Whether there is a Kubernetes API to publish to.

    The file that kubectl takes by itself does not count: whoever tries the agent on a machine of their
    own doesn't want it to write into the cluster that they happened to look at last.
    """
    wish = settings[AgentSettings].kubernetes
    named = settings[KubernetesSettings].kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in environ
    return wish == "on" or (wish == "auto" and named)


@contextmanager
def _stop_on_signals() -> "Iterator[asyncio.Event]":
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
