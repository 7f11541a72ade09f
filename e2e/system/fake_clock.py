"""Another time for one process: libfaketime, found on this machine or taken from Debian's archive.

Hours are computed when they are over, and no test waits for that. `gpufleet db backfill` computes any hour from what
is stored, so it is told that the hour is over. Everything else runs on the true clock.
"""

from pathlib import Path

from tests.debian import unpacked

_NAME = "**/faketime/libfaketime.so.1"


def clock_ahead(seconds: int) -> dict[str, str]:
    """Variables with which a process sees a clock that is so far ahead; skips where there is no library for it."""
    return {"LD_PRELOAD": str(_library()), "FAKETIME": f"+{seconds}"}


def _library() -> Path:
    for found in Path("/usr/lib").glob(_NAME):
        return found
    return next(unpacked("libfaketime").glob(_NAME))
