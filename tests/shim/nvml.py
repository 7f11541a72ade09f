"""Build and control the NVML shim: describe a machine, and change it while it is read.

    shim = NvmlShim(build_shim(), tmp_path)      # or the fixture nvml_shim
    shim.describe(switched(8))                   # eight GPUs on an NVSwitch
    subprocess.run([...], env={**os.environ, **shim.environment()})
    shim.xid(3, 79); shim.lose(3)

`environment()` is for other processes, `load()` for this one: the dynamic loader finds an already loaded
library by its soname, so nvidia-ml-py gets the shim.

Keys of the state (N is a GPU, K counts from 0):
    driver, nvml, count                  strings of the driver; how many GPUs it lists
    N.uuid, N.name, N.bus, N.minor       identity
    N.memory_total, …_used, …_reserved   bytes
    N.utilization, N.memory_utilization  percent
    N.temperature, N.power_mw, N.power_limit_mw, N.sm_clock, N.memory_clock, N.throttle (bits)
    N.pcie_{width,generation}, N.pcie_max_{width,generation}
    N.fabric                             `state status mask` of the NVLink fabric; state 1 not started, 3 completed
    N.field.ID                           counters by NVML field id (3, 4 ECC; 59 NVLink recoveries; 83 energy; 142–145 remapping; 230 action)
    N.link.K                             `version peer`; peer is a bus id, `switch` or `down`
    N.mig_mode, N.mig.K.{uuid,name,gi,ci,memory_total}
    N.process.K                          `pid bytes gi ci`
    N.lost                               every call on the GPU returns GPU_IS_LOST
    events, event.K                      XIDs so far, and each as `gpu xid`
    fail.FUNCTION, fail.N.FUNCTION       the code that the call returns
    hang.FUNCTION                        the call sleeps until the key is removed
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).with_name("nvml_shim.c")
NAME = "libnvidia-ml.so.1"
GIB = 2**30
NO_INSTANCE = 2**32 - 1

State = dict[str, str]


class NvmlShim:
    """A simulated machine; readers see every change immediately."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.library = library
        self.path = folder / "nvml-state.txt"
        self.state: State = {}

    def describe(self, state: Mapping[str, str]) -> None:
        """Replace the whole machine."""
        self.state = dict(state)
        self._write()

    def set(self, key: str, value: object) -> None:
        self.state[key] = str(value)
        self._write()

    def unset(self, *keys: str) -> None:
        for key in keys:
            self.state.pop(key, None)
        self._write()

    def xid(self, gpu: int, code: int) -> None:
        """Report an XID to all event subscribers."""
        number = int(self.state.get("events", "0")) + 1
        self.state |= {"events": str(number), f"event.{number}": f"{gpu} {code}"}
        self._write()

    def lose(self, gpu: int) -> None:
        self.set(f"{gpu}.lost", 1)

    def find_again(self, gpu: int) -> None:
        self.unset(f"{gpu}.lost")

    def hang(self, function: str) -> None:
        self.set(f"hang.{function}", 1)

    def unhang(self) -> None:
        self.unset(*[key for key in self.state if key.startswith("hang.")])

    def fail(self, function: str, code: int, gpu: int | None = None) -> None:
        self.set(f"fail.{function}" if gpu is None else f"fail.{gpu}.{function}", code)

    def run(self, gpu: int, pid: int, memory_bytes: int, instance: tuple[int, int] | None = None) -> None:
        """Add a process to the GPU."""
        free = next(k for k in range(1000) if f"{gpu}.process.{k}" not in self.state)
        gi, ci = instance or (NO_INSTANCE, NO_INSTANCE)
        self.set(f"{gpu}.process.{free}", f"{pid} {memory_bytes} {gi} {ci}")

    def environment(self) -> dict[str, str]:
        """Return the environment with which another process finds the shim instead of a driver."""
        folders = [str(self.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {"LD_LIBRARY_PATH": ":".join(folders), "NVML_SHIM_STATE": str(self.path)}

    def load(self) -> None:
        """Make this process find the shim (the caller sets NVML_SHIM_STATE)."""
        ctypes.CDLL(str(self.library))

    def _write(self) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in self.state.items()))
        fresh.replace(self.path)


def build_shim() -> Path:
    """Compile the library once per version of its source; skip the test without a compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (gcc) on this machine to build the NVML shim")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "gpufleet" / "nvml-shim" / hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    library = folder / NAME
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / NAME
            flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-shared", "-fPIC", f"-Wl,-soname,{NAME}"]
            subprocess.run([compiler, *flags, "-o", built, SOURCE, "-lpthread"], check=True, timeout=60)
            built.replace(library)
    return library


@pytest.fixture
def nvml_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlShim]:
    """Provide eight GPUs on one NVSwitch, for this process and those started with `environment()`."""
    shim = NvmlShim(build_shim(), tmp_path)
    shim.describe(switched(8))
    shim.load()
    monkeypatch.setenv("NVML_SHIM_STATE", str(shim.path))
    yield shim
    shim.unhang()


def bus(gpu: int) -> str:
    return f"00000000:{0x10 + gpu:02X}:00.0"


def uuid(gpu: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{gpu:012d}"


def machine(count: int, model: str = "NVIDIA H100 80GB HBM3", memory: int = 80 * GIB) -> State:
    """Return `count` GPUs without links, each with its own readings."""
    state = {"driver": "580.95.05", "nvml": "13.580.95", "count": str(count)}
    for gpu in range(count):
        state |= {
            f"{gpu}.uuid": uuid(gpu),
            f"{gpu}.name": model,
            f"{gpu}.bus": bus(gpu),
            f"{gpu}.minor": str(gpu),
            f"{gpu}.memory_total": str(memory),
            f"{gpu}.memory_reserved": str(GIB // 2),
            f"{gpu}.memory_used": str(gpu * GIB),
            f"{gpu}.utilization": str(10 * gpu),
            f"{gpu}.memory_utilization": str(5 * gpu),
            f"{gpu}.temperature": str(40 + gpu),
            f"{gpu}.power_mw": str(100_500 + 1000 * gpu),
            f"{gpu}.power_limit_mw": "700000",
            f"{gpu}.sm_clock": "1980",
            f"{gpu}.memory_clock": "2619",
            f"{gpu}.throttle": "0",
            f"{gpu}.mig_mode": "0",
            f"{gpu}.field.3": "0",
            f"{gpu}.field.4": "0",
            f"{gpu}.field.83": str(5_000_000 + gpu),
            f"{gpu}.field.142": "0",
            f"{gpu}.field.143": "0",
            f"{gpu}.field.144": "0",
            f"{gpu}.field.145": "0",
            f"{gpu}.field.59": "0",
            f"{gpu}.pcie_max_width": "16",
            f"{gpu}.pcie_max_generation": "5",
            f"{gpu}.pcie_width": "16",
            f"{gpu}.pcie_generation": "5" if gpu >= 5 else "1",
            f"{gpu}.fabric": "3 0 0",
            f"{gpu}.field.230": "0",
        }
    return state


def switched(count: int, links: int = 18, version: int = 6) -> State:
    """Connect every GPU to NVSwitches with all its links, as on an HGX H100."""
    state = machine(count)
    for gpu in range(count):
        state |= {f"{gpu}.link.{k}": f"{version} switch" for k in range(links)}
    return state


def meshed(*islands: tuple[int, ...], links_per_pair: int = 2, version: int = 2) -> State:
    """Connect the GPUs of each island directly, as on older boards."""
    state = machine(sum(map(len, islands)), "Tesla V100-SXM2-32GB", 32 * GIB)
    for island in islands:
        for gpu in island:
            peers = [peer for peer in island if peer != gpu for _ in range(links_per_pair)]
            state |= {f"{gpu}.link.{k}": f"{version} {bus(peer)}" for k, peer in enumerate(peers)}
    return state


def sliced(state: State, gpu: int, profiles: tuple[str, ...] = ("1g.10gb", "1g.10gb", "3g.40gb")) -> State:
    """Partition one GPU with MIG; its utilization is then NotSupported, as on real hardware."""
    state = {**state, f"{gpu}.mig_mode": "1"}
    del state[f"{gpu}.utilization"]
    for k, profile in enumerate(profiles):
        state |= {
            f"{gpu}.mig.{k}.uuid": f"MIG-{gpu}-{k}",
            f"{gpu}.mig.{k}.name": f"{state[f'{gpu}.name']} MIG {profile}",
            f"{gpu}.mig.{k}.gi": str(k + 1),
            f"{gpu}.mig.{k}.ci": "0",
            f"{gpu}.mig.{k}.memory_total": str(int(profile.split(".")[1][:-2]) * GIB),
        }
    return state
