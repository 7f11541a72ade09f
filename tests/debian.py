"""Programs out of Debian packages for whoever runs the tests: unpacked into a cache, nothing installed."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufleet"


def unpacked(*packages: str) -> Path:
    """The root under which the packages' files lie; a skip where they can't be had."""
    root = _CACHE / f"{packages[0]}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    if root.exists():
        return root
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on this machine to fetch {packages[0]} with")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        try:
            fetched = subprocess.run(
                ["apt-get", "download", *packages], cwd=folder, capture_output=True, text=True, timeout=120
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"apt-get could not fetch {packages[0]} within two minutes")
        if fetched.returncode:
            pytest.skip(f"apt-get could not fetch {packages[0]}: {fetched.stderr[-200:]}")
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, f"{folder}/unpacked"], check=True, timeout=120)
        try:
            (Path(folder) / "unpacked").rename(root)
        except OSError:  # another test process was faster
            assert root.exists()
    return root
