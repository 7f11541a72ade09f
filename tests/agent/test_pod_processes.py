"""Processes on GPUs whose pod is gone."""

from pathlib import Path

from gpufleet.agent.pod_processes import orphans
from gpufleet.model.device import DeviceProcess

GONE = "0f5f1c6e-1d1a-4a4e-9d5c-3a1f6a2b7c8d"
HERE = "1f5f1c6e-1d1a-4a4e-9d5c-3a1f6a2b7c8d"


def process(proc: Path, pid: int, gpu: int, cgroup: str, name: str | None = "python") -> DeviceProcess:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(cgroup)
    return DeviceProcess(f"GPU-{gpu}", gpu, pid, name=name)


def test_processes_are_found_by_the_pod_in_their_cgroup(tmp_path: Path) -> None:
    systemd = GONE.replace("-", "_")
    slice_ = (
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd}.slice/cri-x.scope\n"
    )
    processes = [
        process(tmp_path, 1, 0, f"0::/kubepods/burstable/pod{GONE}/abc\n"),
        process(tmp_path, 2, 1, slice_),
        process(tmp_path, 3, 2, f"0::/kubepods/pod{HERE}/abc\n"),
        process(tmp_path, 4, 3, "0::/user.slice/session-1.scope\n"),
        process(tmp_path, 5, 4, f"0::/kubepods/pod{GONE}/abc\n", name=None),
        DeviceProcess("GPU-5", 5, 99, name="python"),
    ]
    assert orphans(processes, {HERE}, tmp_path) == {0: {GONE}, 1: {GONE}}
