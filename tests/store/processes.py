"""Find the PostgreSQL processes of a data directory, and stop them for a while."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


@contextmanager
def frozen(data: Path) -> Iterator[None]:
    """Stop the server of a data directory and its workers: connections stay open, nothing is answered."""
    servers = servers_of(data)
    assert servers
    processes = []
    # The servers first: they start no more workers then. A worker may end meanwhile.
    for process in (*servers, *(worker for server in servers for worker in _workers_of(server))):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
            processes.append(process)
    try:
        yield
    finally:
        for process in processes:
            if process.is_running():
                process.send_signal(signal.SIGCONT)


def _workers_of(server: psutil.Process) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        yield from server.children(recursive=True)


def servers_of(data: Path) -> list[psutil.Process]:
    """Return the servers (not their workers) of a data directory, without zombies."""
    path = str(data / "postgres")
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if path in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
