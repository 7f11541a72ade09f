"""Which PostgreSQL processes serve a data directory."""

from pathlib import Path

import psutil


def servers_of(data: Path) -> list[psutil.Process]:
    """The servers (not their workers) of a data directory."""
    wanted = str(data / "postgres")
    return [
        process for process in psutil.process_iter(["cmdline"]) if wanted in (process.info["cmdline"] or [])
    ]
