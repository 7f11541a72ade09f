"""Take nodes with faulty GPUs out of service, repair, test and return them, as far as the policy allows.

  gpufleet repair                     # observe: conditions and events only
  gpufleet repair --policy repair     # taint, evict, repair, test and return, see docs/repair.md

Several replicas may run; one leads and is Ready. All state is in GpuRepairs.
"""

import argparse

from gpufleet.runtime.settings import AlertSettings, KubernetesSettings, RepairSettings, Settings

GROUPS: tuple[type, ...] = (RepairSettings, AlertSettings, KubernetesSettings)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: everything is a setting."""


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Run until a signal arrives."""
    import uvloop

    from gpufleet.repair.process import run_repair
    from gpufleet.runtime.process import run_until_stopped

    return run_until_stopped(
        lambda _stopper: run_repair(
            settings, lambda url: print(f"gpufleet repair serves on {url}", flush=True)
        ),
        uvloop.new_event_loop,
    )
