"""Run the agent: as a service, or for a single read."""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

from gpufleet.agent.agent import Agent
from gpufleet.agent.monitor import Observation
from gpufleet.kubernetes import KubeClient
from gpufleet.runtime.background import Background
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import (
    AgentSettings,
    DevicesSettings,
    KubernetesSettings,
    Settings,
    TrainingSettings,
)
from gpufleet.training.user_patterns import compile_user_patterns


async def run_agent(settings: Settings, on_started: Callable[[str, str], None]) -> None:
    """Read, publish and serve until cancelled; `on_started` gets the name of the node and the URL."""
    own = settings[AgentSettings]
    async with AsyncExitStack() as closing:
        listening = closing.enter_context(bind(own.host, own.port))
        client = None
        if publishes(settings, os.environ):
            client = await closing.enter_async_context(KubeClient.from_settings(settings[KubernetesSettings]))
        agent = _agent(settings, client)
        closing.push_async_callback(agent.close)
        await closing.enter_async_context(agent.listener().serving(listening))
        background = await closing.enter_async_context(Background())
        for name, work in agent.tasks().items():
            background.start(name, work)
        on_started(agent.node, address_of(listening))
        await asyncio.Event().wait()


async def read_once(settings: Settings, show: Callable[[Observation, bytes], None]) -> int:
    """Pass one read and its metrics to `show`; return the exit status: 1 if the driver did not answer."""
    agent = _agent(settings)
    try:
        observation = await agent.monitor.read()
        show(observation, agent.exporter.render())
        return 1 if observation.problem else 0
    finally:
        await agent.close()


def publishes(settings: Settings, environ: Mapping[str, str]) -> bool:
    """Return whether the agent publishes to a Kubernetes API.

    kubectl's default kubeconfig does not count: a user who tries the agent on a workstation does not expect
    it to write into a cluster.
    """
    choice = settings[AgentSettings].kubernetes
    configured = settings[KubernetesSettings].kubeconfig is not None or "KUBERNETES_SERVICE_HOST" in environ
    return choice == "on" or (choice == "auto" and configured)


def _agent(settings: Settings, client: KubeClient | None = None) -> Agent:
    return Agent(
        settings[AgentSettings].node or socket.gethostname().lower(),
        settings[AgentSettings],
        settings[DevicesSettings],
        client,
        settings[KubernetesSettings].lease_namespace,
        patterns=compile_user_patterns(settings[TrainingSettings].patterns),
    )
