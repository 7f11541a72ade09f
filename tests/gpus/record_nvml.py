"""Record the readings of an NVIDIA machine together with the output of nvidia-smi, as a test fixture.

    PYTHONPATH=src:/path/to/unpacked/wheels python tests/gpus/record_nvml.py --out h200.json

Needs the standard library and nvidia-ml-py (psutil, if installed, for the names of processes). With torch
or the CUDA driver it starts a small process that holds GPU memory, so that the recording contains one.
nvidia-smi runs just before and after each reading, because values change: a reading agrees if it lies
between the two, widened by nvidia-smi's rounding.
"""

import argparse
import dataclasses
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.processes import ProcessTable

HELD_MIB = 512
QUERY = (
    "index,uuid,name,pci.bus_id,memory.total,memory.used,memory.free,utilization.gpu,utilization.memory,"
    "temperature.gpu,power.draw,enforced.power.limit,clocks.sm,clocks.mem,mig.mode.current,"
    "ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total"
)
PROCESSES = "gpu_uuid,pid,used_memory"

HOLD_WITH_TORCH = f"""
import sys, torch
held = torch.ones({HELD_MIB} * 2**20 // 4, device="cuda:0")
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.readline()
"""
HOLD_WITH_DRIVER = f"""
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer, device = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
def check(code):
    if code: sys.exit(f"CUDA error {{code}}")
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
check(cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t({HELD_MIB} * 2**20)))
print("ready", flush=True)
sys.stdin.readline()
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--samples", type=int, default=5, help="readings to record")
    arguments = parser.parse_args()
    holder = start_holder()
    reader = NvmlReader(processes=ProcessTable(trust_pids=True))
    try:
        recording = record(reader, arguments.samples, holder.pid if holder else None)
    finally:
        reader.close()
        if holder is not None:
            holder.communicate("\n", timeout=30)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(recording, indent=1) + "\n")
    print(
        f"recorded {len(recording['inventory'])} GPUs, {len(recording['samples'])} samples to {arguments.out}"
    )
    return 0


def record(reader: NvmlReader, samples: int, holder_pid: int | None) -> dict[str, Any]:
    reader.readings()
    return {
        "reader": reader.name,
        "python": platform.python_version(),
        "held_mib": HELD_MIB,
        "holder_pid": holder_pid,
        "inventory": [dataclasses.asdict(device) for device in reader.inventory()],
        "processes_before": smi_rows(PROCESSES, "--query-compute-apps"),
        "processes": [dataclasses.asdict(row) for row in reader.processes()],
        "samples": [sample(reader) for _ in range(samples)],
        "nvidia_smi_xml": re.sub(r"<serial>.*?</serial>", "<serial>0</serial>", smi("-q", "-x")),
        "nvidia_smi_nvlink": smi("nvlink", "-s"),
        "nvidia_smi_topo": smi("topo", "-m"),
        "cost": cost(reader),
    }


def sample(reader: NvmlReader) -> dict[str, Any]:
    before = smi_rows(QUERY, "--query-gpu")
    readings = [dataclasses.asdict(reading) for reading in reader.readings()]
    after = smi_rows(QUERY, "--query-gpu")
    time.sleep(0.3)
    return {"before": before, "readings": readings, "after": after}


def cost(reader: NvmlReader, rounds: int = 50) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        reader.readings()
    return {
        "cpu_ms_per_reading": 1000 * (time.process_time() - cpu) / rounds,
        "wall_ms_per_reading": 1000 * (time.perf_counter() - wall) / rounds,
    }


def smi_rows(fields: str, question: str) -> list[dict[str, str]]:
    lines = smi(f"{question}={fields}", "--format=csv,noheader,nounits").splitlines()
    return [
        dict(zip(fields.split(","), (cell.strip() for cell in line.split(",")), strict=True))
        for line in lines
    ]


def smi(*arguments: str) -> str:
    done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60)
    return done.stdout


def start_holder() -> "subprocess.Popen[str] | None":
    """Start a process that holds GPU memory, with torch or else with the CUDA driver."""
    for program in (HOLD_WITH_TORCH, HOLD_WITH_DRIVER):
        holder = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        if holder.stdout.readline().strip() == "ready":
            return holder
        holder.communicate(timeout=60)
    print("no process could be started on the GPU; the recording will show none", file=sys.stderr)
    return None


if __name__ == "__main__":
    sys.exit(main())
