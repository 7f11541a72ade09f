"""Where a kubectl is on this machine."""

import os
import shutil
from pathlib import Path


def find_kubectl() -> Path | None:
    """From KUBEBUILDER_ASSETS, the cache that `make e2e` fills (of a known version), or PATH; None if there is none."""
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        there = Path(assets) / "kubectl"
        if there.is_file():
            return there
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufleet"
    if built := sorted(cache.glob("kubernetes-*/kubectl")):
        return built[-1]
    found = shutil.which("kubectl")
    return Path(found) if found else None
