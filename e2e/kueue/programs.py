"""Kueue's manager and its Helm chart, built once from its Go module into the cache of the other programs."""

import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster import build
from e2e.cluster.cache import Progress, cache, has_programs, stored
from e2e.cluster.errors import Unavailable

_HERE = Path(__file__).parent
_MODULE = "sigs.k8s.io/kueue"
_MANAGER = "kueue"
_CHART = "chart"


@dataclass(frozen=True)
class Programs:
    """The manager and its chart."""

    directory: Path

    @property
    def manager(self) -> Path:
        """The program of the controller manager."""
        return self.directory / _MANAGER

    @property
    def chart(self) -> Path:
        """The Helm chart of the same version: CRDs, RBAC, webhooks."""
        return self.directory / _CHART


def find(progress: Progress) -> Programs:
    """Return the programs. Raise `Unavailable` with a one-line reason if they can't be built."""
    title = f"Kueue {pinned_version()}"
    directory = _from_cache() or stored(
        title, _name(), _from_cache, lambda target: _build(target, title, progress), progress
    )
    return Programs(directory)


def pinned_version() -> str:
    """Return the release that `go.mod` pins, such as 0.16.1."""
    found = re.search(rf"{_MODULE} v(\S+)", (_HERE / "go.mod").read_text())
    assert found, "go.mod names no Kueue"
    return found[1]


def _name() -> str:
    digest = hashlib.sha256((_HERE / "go.sum").read_bytes()).hexdigest()[:8]
    return f"kueue-{pinned_version()}-{digest}"


def _from_cache() -> Path | None:
    directory = cache() / _name()
    usable = has_programs(directory, (_MANAGER,)) and (directory / _CHART / "Chart.yaml").is_file()
    return directory if usable else None


def _build(target: Path, title: str, progress: Progress) -> None:
    target.mkdir()
    build.module(target, title, _HERE, [f"{_MODULE}/cmd/kueue"], progress)
    go = build.find_go(target.parent, progress)
    command = [str(go), "list", "-m", "-f", "{{.Dir}}", _MODULE]
    try:
        done = subprocess.run(command, cwd=_HERE, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(f"the chart of {title} can't be found: {error}") from error
    shutil.copytree(Path(done.stdout.strip()) / "charts" / "kueue", target / _CHART)
    for directory in (target / _CHART, *(target / _CHART).rglob("*")):
        directory.chmod(0o755 if directory.is_dir() else 0o644)  # modules are read-only
