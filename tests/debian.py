"""Unpack programs from Debian packages into a cache, without installing them."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufleet"


def unpacked(*packages: str) -> Path:
    """Return the directory with the files of the packages. Skip the test if they can't be downloaded."""
    root = _CACHE / f"{packages[0]}-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    if root.exists():
        return root
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool} to download {packages[0]}")
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as folder:
        try:
            download = subprocess.run(
                ["apt-get", "download", *packages], cwd=folder, capture_output=True, text=True, timeout=120
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"apt-get could not download {packages[0]} within two minutes")
        if download.returncode:
            pytest.skip(f"apt-get could not download {packages[0]}: {download.stderr[-200:]}")
        for package in Path(folder).glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, f"{folder}/unpacked"], check=True, timeout=120)
        try:
            (Path(folder) / "unpacked").rename(root)
        except OSError:  # another test process was faster
            assert root.exists()
    return root
