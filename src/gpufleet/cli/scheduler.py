"""Hand out GPUs: an extender for kube-scheduler, or a loop of its own.

  gpufleet scheduler                  # kube-scheduler calls it, see docs/scheduling.md
  gpufleet scheduler --standalone     # binds the pods of schedulerName gpu-scheduler itself

Several replicas may run; one leads and is Ready. All state is in GpuClaims, Leases and pods.
"""

import argparse
import asyncio
import os
import secrets
import signal
import socket
from collections.abc import Callable

from gpufleet.runtime.settings import KubernetesSettings, SchedulerSettings, Settings

GROUPS: tuple[type, ...] = (SchedulerSettings, KubernetesSettings)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: all of it is settings."""


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Schedule until a signal says stop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_schedule(settings))


async def _schedule(settings: Settings) -> int:
    from gpufleet.kubernetes import KubeClient
    from gpufleet.kubernetes.client.connection import connection_from_settings
    from gpufleet.runtime.listening import address_of, bind
    from gpufleet.scheduler.process import ExtenderServer, Replica, serve

    scheduler, kubernetes = settings[SchedulerSettings], settings[KubernetesSettings]
    client = KubeClient(
        connection_from_settings(kubernetes),
        requests_per_second=scheduler.requests_per_second,
        burst=scheduler.burst,
        timeout=kubernetes.timeout,
        field_manager="gpufleet-scheduler",
    )
    with bind(scheduler.host, scheduler.port) as listening:
        async with client:
            replica = Replica(client, scheduler, kubernetes.lease_namespace, _identity())
            address = address_of(listening)
            server = ExtenderServer(
                replica.extender(), lambda: print(f"gpufleet scheduler answers on {address}", flush=True)
            )
            _stop_on_signals(server.stop)
            await serve(replica, server, listening)
    return 0


def _identity() -> str:
    """This process's own name among the replicas."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}-{secrets.token_hex(4)}"


def _stop_on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
