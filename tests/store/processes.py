"""Find the PostgreSQL processes of a data directory."""

from pathlib import Path

import psutil


def servers_of(data: Path) -> list[psutil.Process]:
    """Return the servers (not their workers) of a data directory, without zombies."""
    path = str(data / "postgres")
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if path in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
