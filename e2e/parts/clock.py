"""Another time for one process: libfaketime, found on this machine or taken from Debian's archive.

Hours are computed when they are over, and no test waits for that. `gpufleet db backfill` computes any hour from what
is stored, so it is told that the hour is over. Everything else runs on the true clock.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpufleet" / "libfaketime"
_NAME = "**/faketime/libfaketime.so.1"


def ahead(seconds: int) -> dict[str, str]:
    """Variables with which a process sees a clock that is so far ahead; skips where there is no library for it."""
    return {"LD_PRELOAD": str(_library()), "FAKETIME": f"+{seconds}"}


def _library() -> Path:
    for folder in (Path("/usr/lib"), _CACHE):
        for found in folder.glob(_NAME):
            return found
    return _fetch()


def _fetch() -> Path:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            pytest.skip(f"no libfaketime on this machine, and no {tool} to fetch it with")
    _CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE.parent) as folder:
        words = ["apt-get", "download", "libfaketime"]
        fetched = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
        packages = list(Path(folder).glob("libfaketime_*.deb"))
        if not packages:
            pytest.skip(f"no libfaketime, and apt-get could not fetch it: {fetched.stderr[-200:]}")
        subprocess.run(["dpkg", "-x", packages[0], f"{folder}/unpacked"], check=True, timeout=60)
        shutil.copytree(f"{folder}/unpacked", _CACHE, dirs_exist_ok=True)
    return next(_CACHE.glob(_NAME))
