"""Where a kubectl is on this machine."""

import os
import shutil
from pathlib import Path


def find_kubectl() -> Path | None:
    """From KUBEBUILDER_ASSETS, PATH, or the cache that `make e2e` fills; None if there is none."""
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        there = Path(assets) / "kubectl"
        if there.is_file():
            return there
    if found := shutil.which("kubectl"):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufleet"
    built = sorted(cache.glob("kubernetes-*/kubectl"))
    return built[-1] if built else None
