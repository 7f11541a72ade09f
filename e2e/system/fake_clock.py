"""Move the clock of one process with libfaketime, installed on this machine or taken from Debian's archive.

Hours are computed after they end, and tests don't wait for that. `gpufleet db backfill` computes any hour from
stored data, so it runs with a clock that is ahead. Everything else runs on the real clock.
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
