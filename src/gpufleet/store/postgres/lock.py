"""One server for one data directory.

The lock is a `flock` on a file in the directory. The kernel gives it back when the process
ends, however it ends, so there is nothing to clean up by hand; the pid written into the file
is only for the message that a second server prints.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpufleet.errors import OperationRefused


@contextmanager
def sole_user(data: Path) -> Iterator[None]:
    """Hold `data` for this process alone; another process that tries is refused with our pid."""
    path = data / "server.lock"
    try:
        data.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OperationRefused(
            f"can't use the data directory {data}: {error.strerror}; choose another with --data"
        ) from error
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(file, 32, 0).decode(errors="replace").strip() or "unknown"
            raise OperationRefused(
                f"another gpufleet (pid {pid}) uses the data directory {data}; "
                "stop it, or give this one a directory of its own with --data"
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)
