"""Run `gpufleet agent` with a fake kernel log, sysfs and /proc: python -m e2e.agent_on_fake_files FOLDER ARGUMENTS.

FOLDER has the FIFO `kmsg`, the tree `infiniband` (as /sys/class/infiniband) and the tree `proc` (cgroups of processes).
Processes of deleted pods are a finding after one second.
"""

import functools
import sys
from pathlib import Path

from gpufleet.agent import agent
from gpufleet.agent.pod_processes import OrphanAge, orphans
from gpufleet.cli import main
from gpufleet.gpus.infiniband import read_ports
from gpufleet.gpus.kernel_log import KernelLog
from gpufleet.gpus.processes import ProcessTable


def run(folder: Path, arguments: list[str]) -> int:
    agent.open_kernel_log = lambda: KernelLog(folder / "kmsg", from_start=True)  # type: ignore[attr-defined]
    agent.Monitor = functools.partial(agent.Monitor, ports=lambda: read_ports(folder / "infiniband"))  # type: ignore[attr-defined, misc]
    agent.orphans = functools.partial(orphans, proc=folder / "proc")  # type: ignore[attr-defined]
    agent.OrphanAge = functools.partial(OrphanAge, 1.0)  # type: ignore[attr-defined, misc]
    # The processes are not ours: name them without looking.
    ProcessTable._details = lambda self, pid, identify: {"name": "python"}  # type: ignore[method-assign]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
