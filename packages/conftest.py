"""Let kubelite's contract tests find the kubectl that `make e2e` downloads."""

import os
from pathlib import Path

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufleet"

if built := sorted(_CACHE.glob("kubernetes-*/kubectl")):
    os.environ.setdefault("KUBEBUILDER_ASSETS", str(built[-1].parent))
