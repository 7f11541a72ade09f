"""Run `gpufleet agent` with a fake kernel log, sysfs and /proc: python -m e2e.agent_on_fake_files FOLDER ARGUMENTS.

FOLDER has the FIFO `kmsg`, the tree `infiniband` (as /sys/class/infiniband) and the tree `proc` (cgroups of processes).
Processes of deleted pods are a finding after one second.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from gpufleet.agent import agent
from gpufleet.agent.monitor import Monitor
from gpufleet.agent.pod_processes import OrphanAge, orphans
from gpufleet.cli import main
from gpufleet.gpus.infiniband import read_ports
from gpufleet.gpus.kernel_log import KernelLog
from gpufleet.gpus.processes import ProcessTable


def run(folder: Path, arguments: list[str]) -> int:
    replaced: dict[str, Any] = {
        "open_kernel_log": partial(KernelLog, folder / "kmsg", from_start=True),
        "Monitor": partial(Monitor, ports=partial(read_ports, folder / "infiniband")),
        "orphans": partial(orphans, proc=folder / "proc"),
        "OrphanAge": partial(OrphanAge, 1.0),
    }
    for name, value in replaced.items():
        assert hasattr(agent, name)
        setattr(agent, name, value)
    # The processes are not ours: name them without looking.
    ProcessTable._details = lambda self, pid, identify: {"name": "python"}  # type: ignore[method-assign]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
