"""A real Podman for tests: Debian's packages, unpacked into the cache.

It has its own storage, no network and a file system with only busybox. Where it is not
available, or the machine cannot run containers, the tests are skipped with the reason.
"""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.debian import unpacked

_PACKAGES = (
    "podman",
    "conmon",
    "runc",
    "busybox-static",
    "libgpgme11",
    "libassuan0",
    "libsubid4",
    "libdevmapper1.02.1",
    "libseccomp2",
    "libglib2.0-0",
)
_CONFIGURATION = """
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
conmon_path = ["{root}/usr/bin/conmon", "/usr/bin/conmon"]
[engine.runtimes]
runc = ["{root}/usr/sbin/runc", "/usr/sbin/runc", "/usr/bin/runc"]
"""


class Podman:
    """A running Podman service and its command."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "api.sock"
        (folder / "containers.conf").write_text(_CONFIGURATION.format(root=root))
        system = folder / "system"
        (system / "bin").mkdir(parents=True)
        for folder_of in ("dev", "proc", "sys", "etc", "tmp", "run"):
            (system / folder_of).mkdir()
        shutil.copy(root / "bin/busybox", system / "bin/busybox")
        for name in ("sh", "sleep", "false"):
            (system / "bin" / name).symlink_to("busybox")
        libraries = [str(path) for path in (*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu"))]
        self._system = system
        self._command = [
            str(root / "usr/bin/podman"), "--root", f"{folder}/store", "--runroot", f"{folder}/run",
            "--storage-driver", "vfs",
        ]  # fmt: skip
        self._environment = {
            **os.environ,
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "LD_LIBRARY_PATH": ":".join(libraries),
            "PATH": f"{os.environ['PATH']}:{root}/usr/bin:{root}/usr/sbin",
            "HOME": str(folder),
        }
        self.service = subprocess.Popen(
            [*self._command, "system", "service", "-t", "0", f"unix://{self.socket}"],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def command(self, *arguments: str) -> str:
        """Run a Podman command and return its output."""
        done = subprocess.run(
            [*self._command, *arguments], env=self._environment, capture_output=True, text=True, timeout=30
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip() or done.stdout.strip())
        return done.stdout.strip()

    def run(self, name: str, *options: str, program: str = "sleep 60") -> str:
        """Start a container and return its id."""
        loose = ("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined")
        words = ["/bin/sh", "-c", program]
        return self.command(
            "run", "-d", "--name", name, *loose, *options, "--rootfs", str(self._system), *words
        )


@contextmanager
def running_podman() -> Iterator[Podman]:
    """Run a service without containers, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-podman-"))
    podman = Podman(unpacked(*_PACKAGES), folder)
    try:
        _try_out(podman)
        yield podman
    finally:
        try:
            podman.command("rm", "--all", "--force", "--time", "0")
        except RuntimeError:
            pass  # containers do not work here
        podman.service.terminate()
        podman.service.wait(10)
        shutil.rmtree(folder, ignore_errors=True)


def _try_out(podman: Podman) -> None:
    deadline = time.monotonic() + 10
    while not podman.socket.exists():
        if podman.service.poll() is not None or time.monotonic() > deadline:
            pytest.skip("Podman's service does not start on this machine")
        time.sleep(0.05)
    try:
        podman.command("rm", "--force", "--time", "0", podman.run("first"))
    except RuntimeError as error:
        pytest.skip(f"this machine cannot run containers: {str(error)[-200:]}")
