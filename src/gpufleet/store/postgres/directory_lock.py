"""Lock the data directory, so that only one server uses it.

The lock is a `flock` on a file in the directory. The kernel releases it when the process ends, even
after a crash, so there is never a stale lock. The pid in the file is only for error messages.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpufleet.errors import OperationRefused


@contextmanager
def lock_data_directory(data: Path) -> Iterator[None]:
    """Lock `data` for this process; raise OperationRefused if another process holds the lock."""
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
                "stop it, or choose another directory with --data"
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)
