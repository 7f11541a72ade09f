"""Programs of a real node: kubelet, containerd, runc, busybox and the example DRA driver.

kubelet has the version of the control plane and is built from the same module. containerd and the driver have Go
modules of their own, because their dependencies differ. All are built once, into the same cache. runc and busybox
come from Debian packages, and from PATH where Debian's tools are missing.
"""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.debian import unpacked

from e2e.cluster import binaries, build
from e2e.cluster.cache import Progress, cache, has_programs, stored
from e2e.cluster.errors import Unavailable

_HERE = Path(__file__).parent
_CONTAINERD = "github.com/containerd/containerd/v2/cmd"
_CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
_DRIVER = "dra-example-kubeletplugin"
_BUILT = ("kubelet", *_CONTAINERD_PROGRAMS, _DRIVER)
_TOOLS = ("unshare", "nsenter")
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Programs:
    """Paths of the programs."""

    directory: Path
    runc: Path
    busybox: Path

    @property
    def kubelet(self) -> Path:
        """The kubelet."""
        return self.directory / "kubelet"

    @property
    def containerd(self) -> Path:
        """The container runtime; its shim is beside it."""
        return self.directory / "containerd"

    @property
    def ctr(self) -> Path:
        """The command line client of containerd."""
        return self.directory / "ctr"

    @property
    def dra_driver(self) -> Path:
        """The kubelet plugin of the example DRA driver."""
        return self.directory / _DRIVER


def find(progress: Progress) -> Programs:
    """Return all programs. Raise `Unavailable` with a one-line reason if this machine can't run a node."""
    if lacks := missing():
        raise Unavailable(f"this machine can't run a node: {', '.join(lacks)}")
    return Programs(
        _from_cache() or _obtain(progress),
        runc=packaged("runc", "runc"),
        busybox=packaged("busybox-static", "busybox"),
    )


def missing() -> list[str]:
    """Return what this machine lacks to run containers."""
    lacks = [] if hasattr(os, "geteuid") and os.geteuid() == 0 else ["needs root"]
    lacks += [f"needs {tool} of util-linux" for tool in _TOOLS if shutil.which(tool) is None]
    if not ((_CGROUPS / "devices").is_dir() or (_CGROUPS / "cgroup.controllers").is_file()):
        lacks.append(f"needs cgroups, and {_CGROUPS} has no devices controller and no cgroup v2")
    elif not os.access(_CGROUPS, os.W_OK):
        lacks.append(f"needs cgroups, and {_CGROUPS} is read-only")
    return lacks


def _name() -> str:
    """Return the name of the cache directory, which changes with every version."""
    modules = (build.HERE, _HERE / "containerd", _HERE / "dra")
    sums = b"".join((module / "go.sum").read_bytes() for module in modules)
    return f"node-{binaries.pinned_version()}-{hashlib.sha256(sums).hexdigest()[:8]}"


def _from_cache() -> Path | None:
    directory = cache() / _name()
    return directory if has_programs(directory, _BUILT) else None


def _obtain(progress: Progress) -> Path:
    return stored(
        "the programs of a node", _name(), _from_cache, lambda target: _build(target, progress), progress
    )


def _build(target: Path, progress: Progress) -> None:
    target.mkdir()
    build.programs(target, binaries.pinned_version(), ["kubelet"], progress)
    packages = [f"{_CONTAINERD}/{name}" for name in _CONTAINERD_PROGRAMS]
    build.module(target, "containerd", _HERE / "containerd", packages, progress)
    driver = f"sigs.k8s.io/dra-example-driver/cmd/{_DRIVER}"
    build.module(target, "the example DRA driver", _HERE / "dra", [driver], progress)


def packaged(package: str, name: str) -> Path:
    """Return a program of a Debian package, or one on PATH where Debian's tools are missing."""
    path = None
    if shutil.which("apt-get"):
        root = unpacked(package)
        path = os.pathsep.join(str(root / each) for each in ("usr/sbin", "usr/bin", "sbin", "bin"))
    if found := shutil.which(name, path=path):
        return Path(found)
    raise Unavailable(f"no {name}: neither in the package {package} nor on PATH")
