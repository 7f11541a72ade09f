"""Directories of programs that are kept between runs.

A build or download enters the cache as one directory, by one rename, so that an interrupted run leaves nothing
incomplete. A lock lets a second run wait for the first.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster.errors import Unavailable

Progress = Callable[[str], None]


def cache() -> Path:
    """Return the directory for files that are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "gpufleet"


def has_programs(directory: Path, names: tuple[str, ...]) -> bool:
    """Return whether the directory has all these programs."""
    return all(os.access(directory / name, os.X_OK) for name in names)


def stored(
    title: str,
    name: str,
    ready: Callable[[], Path | None],
    fill: Callable[[Path], None],
    progress: Progress,
) -> Path:
    """Return `ready()`, after `fill` has made the directory `name` of the cache, one process at a time."""
    target = cache() / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_name(f"{name}.lock"), title, progress):
            if found := ready():
                return found
            with tempfile.TemporaryDirectory(prefix=f"{name}.", dir=target.parent) as scratch:
                fill(Path(scratch) / "bin")
                shutil.rmtree(target, ignore_errors=True)
                (Path(scratch) / "bin").rename(target)
    except OSError as error:
        raise Unavailable(f"can't store {title} in {target.parent}: {error}") from error
    return target


@contextmanager
def _locked(path: Path, title: str, progress: Progress) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress(f"waiting for another run that builds or downloads {title}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
