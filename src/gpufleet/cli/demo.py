"""Try gpufleet out on a fleet that is not there.

A simulated fleet is written into an embedded Kubernetes-shaped API and an embedded PostgreSQL, and
the ordinary server reads it from there: everything you see works the same on real machines. It begins
with a week of history and then lives in real time. Ctrl-C stops it; the next start goes on where it
was, --fresh begins anew. It never touches another cluster, database or Prometheus.

  gpufleet demo                   # 32 nodes with 8 GPUs each, on 127.0.0.1:8080
  gpufleet demo --nodes 500 --port 9000
"""

import argparse
import asyncio
import shutil
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.runtime.settings import (
    AccountingSettings,
    AuthSettings,
    DemoSettings,
    KubernetesSettings,
    LogSettings,
    MetricsSettings,
    ServerSettings,
    Settings,
    StoreSettings,
)
from gpufleet.runtime.settings.groups import GROUPS as ALL_GROUPS

if TYPE_CHECKING:
    from gpufleet.server.http.server import Server

GROUPS: tuple[type, ...] = (DemoSettings, ServerSettings, AuthSettings, StoreSettings)
CLUSTER = "demo"
_PRICES = {
    "NVIDIA_H200": 3.5,
    "NVIDIA_H100_80GB_HBM3": 2.8,
    "NVIDIA_A100-SXM4-80GB": 1.6,
    "NVIDIA_L40S": 0.9,
    "AMD_Instinct_MI300X": 2.6,
}
"""What a GPU-hour costs in the simulated fleet, so that reports have something to add up."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag that forgets what was."""
    parser.add_argument(
        "--fresh", action="store_true", help="Forget what earlier demos with these numbers have stored."
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Play until a signal says stop."""
    import uvloop

    from gpufleet.runtime.logs import configure_logs

    log = settings[LogSettings]
    if log.level == "info":
        # The terminal belongs to what the demo itself has to say; --log-level debug shows all.
        configure_logs("warning", "console" if sys.stderr.isatty() else "json")
    own = demo_settings(settings)
    if arguments.fresh:
        _forget(own[StoreSettings])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_play(own))


def _forget(store: StoreSettings) -> None:
    from gpufleet.errors import OperationRefused
    from gpufleet.store.postgres.embedded import running_server

    if running_server(store):
        raise OperationRefused(f"a demo is running on {store.data}: stop it before --fresh deletes its data")
    shutil.rmtree(store.data, ignore_errors=True)


def demo_settings(settings: Settings) -> Settings:
    """The settings with everything outside this process taken away, and one cluster, `demo`."""
    demo, store = settings[DemoSettings], settings[StoreSettings]
    folder = store.data / "demo" / f"{demo.nodes}x{demo.gpus}-seed{demo.seed}"
    own = settings.replace(
        *(group() for group in ALL_GROUPS.values() if group not in (*GROUPS, LogSettings)),
        replace(store, url="", data=folder),
        MetricsSettings(retention=(demo.days + 1) * 86_400),
        KubernetesSettings(kubeconfig=folder / "kubeconfig"),
        AccountingSettings(
            label_keys=("team", "project"), annotation_keys=("finance/cost-center",), prices=dict(_PRICES)
        ),
    )
    return own.with_clusters({CLUSTER: own.with_clusters({})})


async def _play(settings: Settings) -> int:
    from gpufleet.cli.serve import serve_until_told

    began = time.monotonic()

    def started(address: str) -> None:
        said.done(f"ready in {time.monotonic() - began:.1f} s")
        print(_welcome(settings, address), flush=True)

    said = Progress()
    return await serve_until_told(settings, lambda closing: _put_together(settings, closing, said), started)


async def _put_together(settings: Settings, closing: AsyncExitStack, said: "Progress") -> "Server":
    from gpufleet.demo.control_plane import open_trial
    from gpufleet.demo.demo_fleet import DemoFleet
    from gpufleet.server.wiring.assemble import http_server, open_parts
    from gpufleet.server.wiring.components import Components

    demo = settings[DemoSettings]
    said.step(f"simulating {demo.nodes} nodes with {demo.gpus} GPUs each (seed {demo.seed})")
    show = await closing.enter_async_context(DemoFleet(settings, CLUSTER))
    await show.begin(said.count)
    said.step(f"starting PostgreSQL in {settings[StoreSettings].data}")

    async def prepare(parts: Components) -> None:
        await show.write_past(parts.store, said.count)
        said.step("reading the fleet")

    parts = await open_parts(show.settings, closing, simulated=True, prepare=prepare)
    await show.go_on(parts)
    await open_trial(parts, show.storage)
    return http_server(parts)


class Progress:
    """What is being done, a line each; counts are shown in place at a terminal."""

    def __init__(self) -> None:
        self._moving = sys.stdout.isatty()
        self._counting = False
        self._last = ""

    def step(self, words: str) -> None:
        """Something new begins."""
        self._end_count()
        self._last = ""
        print(f"==> {words}", flush=True)

    def count(self, what: str, done: int, of: int) -> None:
        """Some of it is done."""
        if self._moving:
            self._counting = True
            print(f"\r    {done:,} of {of:,} {what}", end="", flush=True)
        elif done == of and what != self._last:
            self._last = what
            print(f"    {of:,} {what}", flush=True)

    def done(self, words: str) -> None:
        """All is done."""
        self._end_count()
        print(f"==> {words}", flush=True)

    def _end_count(self) -> None:
        if self._counting:
            print(flush=True)
            self._counting = False


def _welcome(settings: Settings, address: str) -> str:
    from gpufleet.demo.control_plane import TRIAL

    kubeconfig = _short(settings[KubernetesSettings].kubeconfig)
    trial = _short(settings[StoreSettings].data / TRIAL)
    return f"""
gpufleet demo: the fleet is simulated, everything else is real.

  Dashboard          {address}/
  API documentation  {address}/docs
  Health             {address}/api/healthz

Try:
  curl '{address}/api/clusters/overview'
  curl '{address}/api/workloads?status=Running&pageSize=5'
  KUBECONFIG={kubeconfig} kubectl get gns
  KUBECONFIG={kubeconfig} kubectl get pods,gclaim -A

Ask for GPUs yourself; the scheduler and the webhook are real:
  KUBECONFIG={kubeconfig} kubectl apply -f {trial}
  KUBECONFIG={kubeconfig} kubectl get gclaim,pod trial

Ctrl-C stops it.
"""


def _short(path: Path | None) -> str:
    assert path is not None
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path)
