import os
import subprocess
import sys
from pathlib import Path

import psutil

from gpufleet.gpus import pci
from gpufleet.gpus.processes import ProcessTable
from gpufleet.model.device import DeviceProcess

UNUSED_PID = 2**22 + 5
"""Above the largest pid of Linux."""


def on_gpu(pid: int, index: int = 0) -> DeviceProcess:
    return DeviceProcess(f"GPU-{index}", index, pid, 1024)


def test_an_unknown_pid_has_no_details() -> None:
    (row,) = ProcessTable(trust_pids=True).describe([on_gpu(UNUSED_PID)], identify=True)
    assert row == on_gpu(UNUSED_PID)


def test_in_another_pid_namespace_only_a_process_with_an_open_gpu_is_trusted(tmp_path: Path) -> None:
    device = tmp_path / "nvidia0"
    device.touch()
    table = ProcessTable(gpu_files=(str(device),), trust_pids=False)
    assert table.describe([on_gpu(os.getpid())], identify=True) == (on_gpu(os.getpid()),)
    with device.open():
        (row,) = table.describe([on_gpu(os.getpid())], identify=True)
    assert row.name == psutil.Process().name()
    assert row.user == psutil.Process().username()


def test_rows_are_sorted_by_gpu_and_pid_and_a_process_on_two_gpus_is_read_once() -> None:
    rows = [on_gpu(os.getpid(), 1), on_gpu(UNUSED_PID, 0), on_gpu(1, 1), on_gpu(os.getpid(), 0)]
    table = ProcessTable(trust_pids=True)
    found = table.describe(rows, identify=False)
    assert [(row.index, row.pid) for row in found] == [
        (0, os.getpid()),
        (0, UNUSED_PID),
        (1, 1),
        (1, os.getpid()),
    ]
    again = table.describe(rows, identify=False)
    assert again[0].cpu_percent is not None
    assert again[0].cpu_percent == again[3].cpu_percent


def test_pci_addresses_are_written_as_sysfs_does() -> None:
    assert pci.bus_id("00000000:3B:00.0") == "0000:3b:00.0"
    assert pci.bus_id(b"0001:C2:00") == "0001:c2:00.0"
    assert pci.bus_id("3b:00.1") == "0000:3b:00.1"
    assert pci.bus_id("GPU-1") is None


def test_the_numa_node_comes_from_the_kernel(tmp_path: Path) -> None:
    for address, text in [("0000:01:00.0", "1\n"), ("0000:02:00.0", "-1\n"), ("0000:03:00.0", "?")]:
        (tmp_path / address).mkdir()
        (tmp_path / address / "numa_node").write_text(text)
    found = [pci.numa_node(f"0000:0{n}:00.0", tmp_path) for n in range(1, 5)]
    assert found == [1, None, None, None]


def test_an_undecodable_name_can_still_be_sent() -> None:
    # The kernel keeps 15 bytes of a name, and so cuts others than English ones within a letter.
    program = "import ctypes, time; ctypes.CDLL(None).prctl(15, 'обучение'.encode()); print(flush=True); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program, b"\xff"], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        (row,) = ProcessTable(trust_pids=True).describe([on_gpu(child.pid)], identify=True)
    finally:
        child.kill()
        child.communicate()
    assert row.name == "обучени?"
    assert row.command is not None
    assert row.command.encode().endswith(b" ?")
