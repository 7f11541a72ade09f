"""Try gpufleet on a simulated fleet.

The fleet is written into an embedded Kubernetes-shaped API and an embedded PostgreSQL, and the ordinary
server reads it from there: everything you see works the same on real machines. It starts with a week of
history and then runs in real time. Ctrl-C stops it; the next start continues, --fresh starts over. It never
touches another cluster, database or Prometheus.

  gpufleet demo                   # 32 nodes with 8 GPUs each, on 127.0.0.1:8080
  gpufleet demo --nodes 500 --port 9000
"""

import argparse
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
    WebhookSettings,
)
from gpufleet.runtime.settings.groups import GROUPS as ALL_GROUPS
from gpufleet.runtime.settings.prices import prices_by_model

if TYPE_CHECKING:
    from gpufleet.runtime.process import Stopper
    from gpufleet.server.http.server import Server

GROUPS: tuple[type, ...] = (DemoSettings, ServerSettings, AuthSettings, StoreSettings)
CLUSTER = "demo"
_PRICES = {
    "NVIDIA_H200": 3.5,
    "NVIDIA_H100_80GB_HBM3": 2.8,
    "NVIDIA_H100_NVL": 2.3,
    "NVIDIA_A100-SXM4-80GB": 1.6,
    "NVIDIA_L40S": 0.9,
    "AMD_Instinct_MI300X": 2.6,
}
"""Price of a GPU-hour in USD in the simulated fleet, so that reports show costs."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag that deletes stored data."""
    parser.add_argument(
        "--fresh", action="store_true", help="Delete the stored data of earlier demos of this size and seed."
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run the demo until a signal arrives."""
    import uvloop

    from gpufleet.runtime.logs import configure_logs
    from gpufleet.runtime.process import STOP_SECONDS, run_until_stopped
    from gpufleet.server.http.server import SHUTDOWN_GRACE_S

    log = settings[LogSettings]
    if log.level == "info":
        # Keep the terminal for the demo's own output; --log-level debug shows everything.
        configure_logs("warning", "console" if sys.stderr.isatty() else "json")
    own = demo_settings(settings)
    if arguments.fresh:
        _delete_data(own[StoreSettings])
    return run_until_stopped(
        lambda stopper: _run(own, stopper),
        uvloop.new_event_loop,
        stop_seconds=SHUTDOWN_GRACE_S + STOP_SECONDS,
    )


def _delete_data(store: StoreSettings) -> None:
    from gpufleet.errors import OperationRefused
    from gpufleet.store.postgres.embedded import running_server

    if running_server(store):
        raise OperationRefused(
            f"a demo is running on {store.data}: stop it before you delete its data with --fresh"
        )
    shutil.rmtree(store.data, ignore_errors=True)


def demo_settings(settings: Settings) -> Settings:
    """Return settings that use nothing outside this process, with one cluster, `demo`."""
    from gpufleet.demo.objects.identities import COST_CENTER

    demo, store = settings[DemoSettings], settings[StoreSettings]
    folder = store.data / "demo" / f"{demo.nodes}x{demo.gpus}-seed{demo.seed}"
    own = settings.replace(
        *(group() for group in ALL_GROUPS.values() if group not in (*GROUPS, LogSettings)),
        replace(store, url="", data=folder),
        MetricsSettings(retention=(demo.days + 1) * 86_400),
        # Its Kubernetes API is part of this process, so no flood is to be expected, whatever the number of nodes.
        KubernetesSettings(kubeconfig=folder / "kubeconfig", max_cache_bytes=1 << 30),
        WebhookSettings(device_requests=settings[WebhookSettings].device_requests),
        AccountingSettings(
            label_keys=("team", "project"),
            annotation_keys=(COST_CENTER,),
            prices=prices_by_model(_PRICES),
            currency="USD",
        ),
    )
    return own.with_clusters({CLUSTER: own.with_clusters({})})


async def _run(settings: Settings, stopper: "Stopper") -> None:
    from gpufleet.server.http.server import run_server
    from gpufleet.server.wiring.login import require_login

    require_login(settings)
    server, progress, started = settings[ServerSettings], Progress(), time.monotonic()

    def on_started(url: str) -> None:
        progress.done(f"ready in {time.monotonic() - started:.1f} s")
        print(_welcome(settings, url), flush=True)

    await run_server(
        server.host, server.port, lambda closing: _build(settings, closing, progress), on_started, stopper
    )


async def _build(settings: Settings, closing: AsyncExitStack, progress: "Progress") -> "Server":
    from gpufleet.demo.control_plane import start_control_plane
    from gpufleet.demo.demo_fleet import DemoFleet
    from gpufleet.server.wiring.assemble import http_server, open_components
    from gpufleet.server.wiring.components import Components

    demo = settings[DemoSettings]
    progress.step(f"simulating {demo.nodes} nodes with {demo.gpus} GPUs each (seed {demo.seed})")
    fleet = await closing.enter_async_context(DemoFleet(settings, CLUSTER))
    await fleet.create_objects(progress.count)
    progress.step(f"starting PostgreSQL in {settings[StoreSettings].data}")

    async def prepare(parts: Components) -> None:
        await fleet.write_history(parts.store, progress.count)
        progress.step("reading the fleet")

    parts = await open_components(fleet.settings, closing, simulated=True, prepare=prepare)
    await fleet.start(parts)
    await start_control_plane(parts, fleet.storage)
    return http_server(parts)


class Progress:
    """Prints one line per step; counts are updated in position at a terminal."""

    def __init__(self) -> None:
        self._in_place = sys.stdout.isatty()
        self._counting = False
        self._last = ""

    def step(self, text: str) -> None:
        """Print the step that starts."""
        self._end_count()
        self._last = ""
        print(f"==> {text}", flush=True)

    def count(self, what: str, done: int, of: int) -> None:
        """Show how much of the step is done."""
        if self._in_place:
            self._counting = True
            print(f"\r    {done:,} of {of:,} {what}", end="", flush=True)
        elif done == of and what != self._last:
            self._last = what
            print(f"    {of:,} {what}", flush=True)

    def done(self, text: str) -> None:
        """Print the last line."""
        self._end_count()
        print(f"==> {text}", flush=True)

    def _end_count(self) -> None:
        if self._counting:
            print(flush=True)
            self._counting = False


def _welcome(settings: Settings, url: str) -> str:
    from gpufleet.demo.control_plane import EXAMPLE_FILE

    kubeconfig = _short(settings[KubernetesSettings].kubeconfig)
    trial = _short(settings[StoreSettings].data / EXAMPLE_FILE)
    return f"""
gpufleet demo: the fleet is simulated, everything else is real.

  Dashboard          {url}/
  API documentation  {url}/docs
  Health             {url}/api/healthz

Try:
  gpufleet get nodes --server {url}
  gpufleet top --server {url}
  curl '{url}/api/clusters/overview'
  curl '{url}/api/workloads?status=Running&pageSize=5'
  KUBECONFIG={kubeconfig} kubectl get gns
  KUBECONFIG={kubeconfig} kubectl get pods,gclaim -A

Request GPUs yourself; the scheduler and the webhook are real:
  KUBECONFIG={kubeconfig} kubectl apply -f {trial}
  KUBECONFIG={kubeconfig} kubectl get gclaim,pod trial

Ctrl-C stops it.
"""


def _short(path: Path | None) -> str:
    assert path is not None
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path)
