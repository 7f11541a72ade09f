"""Character devices that stand for GPUs, and the CDI spec that names them.

No driver is behind these devices. If the kernel permits a process to open one, the open fails with ENXIO ("No such
device or address"); if the device cgroup denies it, with EPERM ("Operation not permitted"), also for a node that the
container made itself with mknod. So `probe_script` finds out what a container may open, however it gets at the device.
"""

import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KIND = "nvidia.com/gpu"
"""The kind of the CDI devices, as NVIDIA's toolkit names it."""

_EXPERIMENTAL_MAJORS = range(120, 128)


@dataclass(frozen=True)
class Gpu:
    """One stand-in: `/dev/nvidia3` with the UUID `GPU-…-3`."""

    index: int
    uuid: str
    major: int

    @property
    def path(self) -> str:
        """The device in a container that has it."""
        return f"/dev/nvidia{self.index}"


def create(directory: Path, count: int) -> tuple[Gpu, ...]:
    """Make the devices in `directory`."""
    used = {
        int(number) for number in re.findall(r"^ *(\d+) ", Path("/proc/devices").read_text(), re.MULTILINE)
    }
    major = next(each for each in _EXPERIMENTAL_MAJORS if each not in used)
    directory.mkdir(parents=True)
    gpus = tuple(Gpu(number, f"GPU-00000000-0000-0000-0000-{number:012}", major) for number in range(count))
    for gpu in gpus:
        os.mknod(_host_path(directory, gpu), stat.S_IFCHR | 0o666, os.makedev(major, gpu.index))
        _host_path(directory, gpu).chmod(0o666)
    return gpus


def write_cdi_spec(file: Path, directory: Path, gpus: Sequence[Gpu]) -> None:
    """Name each GPU by its UUID and its index, as NVIDIA's toolkit does."""
    devices = [
        {
            "name": name,
            "containerEdits": {
                "deviceNodes": [
                    {
                        "path": gpu.path,
                        "hostPath": str(_host_path(directory, gpu)),
                        "type": "c",
                        "major": gpu.major,
                        "minor": gpu.index,
                    }
                ]
            },
        }
        for gpu in gpus
        for name in (gpu.uuid, str(gpu.index))
    ]
    file.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices}, indent=2))


def probe_script(gpus: Sequence[Gpu]) -> str:
    """Return a shell script that prints a line per GPU: `opens 3`, `denied 3` or what else happened.

    It makes its own node of every device, so that a missing `/dev/nvidia3` is no protection by itself, and says
    `node 3` for devices that the container was given.
    """
    return f"""
for gpu in {" ".join(str(gpu.index) for gpu in gpus)}; do
  [ -c /dev/nvidia$gpu ] && echo node $gpu
  [ -c /tmp/gpu$gpu ] || mknod /tmp/gpu$gpu c {gpus[0].major} $gpu
  answer=$( ( : </tmp/gpu$gpu ) 2>&1 )
  case "$answer" in
    *"No such device or address"*) echo opens $gpu;;
    *"Operation not permitted"*) echo denied $gpu;;
    *) echo "$answer" $gpu;;
  esac
done
"""


@dataclass(frozen=True)
class Access:
    """What a container has: device nodes that it was given, and devices that it may open."""

    nodes: frozenset[int]
    opens: frozenset[int]
    denied: frozenset[int]

    @classmethod
    def parse(cls, output: str) -> "Access":
        """Return what the lines of `probe_script` say."""
        found: dict[str, set[int]] = {"node": set(), "opens": set(), "denied": set()}
        for line in output.splitlines():
            kind, _, number = line.rpartition(" ")
            if kind not in found:
                raise AssertionError(f"unexpected answer of the probe: {line}")
            found[kind].add(int(number))
        return cls(frozenset(found["node"]), frozenset(found["opens"]), frozenset(found["denied"]))


def _host_path(directory: Path, gpu: Gpu) -> Path:
    return directory / f"nvidia{gpu.index}"
