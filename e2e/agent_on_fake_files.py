"""Run `gpufleet agent` with a fake kernel log, sysfs and /proc: python -m e2e.agent_on_fake_files FOLDER ARGUMENTS.

FOLDER has the FIFO `kmsg`, the tree `infiniband` (as /sys/class/infiniband) and the tree `proc` (cgroups of processes).
With `amd.json` there, AMD SMI is a fake library with the counters of this file on the first of four GPUs.
Processes of deleted pods are a finding after one second.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from tests.gpus.test_amdsmi import AmdSmiGpuBlock, Release7

from gpufleet.agent import agent
from gpufleet.agent.monitor import Monitor
from gpufleet.agent.pod_processes import OrphanAge, orphans
from gpufleet.cli import main
from gpufleet.gpus.drivers import detect
from gpufleet.gpus.drivers.amdsmi import AmdSmiReader
from gpufleet.gpus.infiniband import read_ports
from gpufleet.gpus.kernel_log import KernelLog
from gpufleet.gpus.processes import ProcessTable


class FakeAmdSmi(Release7):
    """Four GPUs of AMD; the counters of the first are in a file."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def amdsmi_get_gpu_total_ecc_count(self, handle: str) -> dict[str, int]:
        return {"correctable_count": 0, "uncorrectable_count": self._counter(handle, "uncorrectable")}

    def amdsmi_get_gpu_ecc_count(self, handle: str, block: Any) -> dict[str, int]:
        count = self._counter(handle, "uncorrectable") if block == AmdSmiGpuBlock.UMC else 0
        return {"uncorrectable_count": count}

    def amdsmi_get_gpu_bad_page_info(self, handle: str) -> list[dict[str, int]]:
        return [{"status": 1}] * self._counter(handle, "pending")

    def _counter(self, handle: str, name: str) -> int:
        return int(json.loads(self._path.read_text()).get(name, 0)) if handle == "handle-0" else 0


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
    detect.READERS["amdsmi"] = lambda: AmdSmiReader(library=FakeAmdSmi(folder / "amd.json"))
    # The processes are not ours: name them without looking.
    ProcessTable._details = lambda self, pid, identify: {"name": "python"}  # type: ignore[method-assign]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
