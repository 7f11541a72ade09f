"""Which PostgreSQL processes serve a data directory."""

from pathlib import Path

import psutil


def servers_of(data: Path) -> list[psutil.Process]:
    """The servers (not their workers) of a data directory; one that has ended and waits to be reaped is none."""
    wanted = str(data / "postgres")
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if wanted in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE
    ]
