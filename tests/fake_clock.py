"""Move the clock of one process with libfaketime, installed on this machine or taken from Debian's archive.

Hours are computed after they end, and end-to-end tests don't wait for that: `gpufleet db backfill`, which computes any
hour from stored data, runs with a clock that is ahead. Other tests start a server whose clock is wrong.
"""

from pathlib import Path

from tests.debian import unpacked

_NAME = "**/faketime/libfaketime.so.1"


def clock_ahead(seconds: int) -> dict[str, str]:
    """Return variables that set a process's clock `seconds` ahead. Skip the test without libfaketime."""
    return {"LD_PRELOAD": str(_library()), "FAKETIME": f"+{seconds}"}


def _library() -> Path:
    for found in Path("/usr/lib").glob(_NAME):
        return found
    return next(unpacked("libfaketime").glob(_NAME))
