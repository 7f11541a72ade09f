"""Allocate GPUs to pods: as an extender of kube-scheduler, or with a scheduling loop of its own.

  gpufleet scheduler                  # kube-scheduler calls it, see docs/scheduling.md
  gpufleet scheduler --standalone     # binds pods with schedulerName gpu-scheduler itself

Several replicas may run; one leads and is Ready. All state is in GpuClaims, Leases and pods.
"""

import argparse

from gpufleet.runtime.settings import KubernetesSettings, SchedulerSettings, Settings

GROUPS: tuple[type, ...] = (SchedulerSettings, KubernetesSettings)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: everything is a setting."""


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Schedule until a signal arrives."""
    import uvloop

    from gpufleet.runtime.process import run_until_stopped
    from gpufleet.scheduler.process import run_scheduler

    return run_until_stopped(
        lambda _stopper: run_scheduler(
            settings, lambda url: print(f"gpufleet scheduler serves on {url}", flush=True)
        ),
        uvloop.new_event_loop,
    )
