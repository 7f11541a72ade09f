"""Find the PostgreSQL processes of a data directory, and stop them for a while."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


@contextmanager
def frozen(data: Path) -> Iterator[None]:
    """Stop the server of a data directory and its workers: connections stay open, nothing is answered."""
    processes = [each for server in servers_of(data) for each in (server, *server.children(recursive=True))]
    assert processes
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            if process.is_running():
                process.send_signal(signal.SIGCONT)


def servers_of(data: Path) -> list[psutil.Process]:
    """Return the servers (not their workers) of a data directory, without zombies."""
    path = str(data / "postgres")
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if path in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
