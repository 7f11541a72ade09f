"""How far the books are: until when there are snapshots and hours, for those who watch that they are not late.

Read from the store, so that every server tells the same, also while none of them aggregates.
"""

from typing import NamedTuple

from gpufleet.accounting.ports import Shelf
from gpufleet.accounting.recorder import CATCH_UP


class Progress(NamedTuple):
    """Moments in Unix seconds; of a cluster of which there is nothing yet, when its accounting began."""

    snapshot: float
    """The newest snapshot."""
    hours: float
    """Until when every hour is rolled up; one that is missing in between counts, whatever came after it."""


async def progress(cluster: str, shelf: Shelf, now: float) -> Progress | None:
    """How far the books of a cluster are; None if it is not accounted for."""
    known = await shelf.clusters.span(cluster)
    if known is None:
        return None
    taken = await shelf.snapshots.newest(cluster, now)
    hour = max(int(known.since // 3600), int(now // 3600) - CATCH_UP)
    done = await shelf.hours.states(cluster, hour)
    while hour in done:
        hour += 1
    return Progress(max(known.since, taken or 0.0), max(known.since, hour * 3600.0))
