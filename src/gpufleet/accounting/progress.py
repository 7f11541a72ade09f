"""How far accounting has come, for alerts on late snapshots and hours.

Read from the store, so that every server reports the same, even if none of them aggregates.
"""

from typing import NamedTuple

from gpufleet.accounting.recorder import MAX_CATCH_UP
from gpufleet.store import Store


class Progress(NamedTuple):
    """Times in Unix seconds. A cluster without data yet has the time at which its accounting began."""

    snapshot: float
    """The newest snapshot."""
    hours: float
    """The end of the last hour without a gap before it."""


async def progress(cluster: str, store: Store, now: float) -> Progress | None:
    """Return the progress of a cluster, or None if it is not accounted for."""
    span = await store.accounted.span(cluster)
    if span is None:
        return None
    newest = await store.snapshots.newest(cluster, now)
    hour = max(int(span.since // 3600), int(now // 3600) - MAX_CATCH_UP)
    states = await store.hours.states(cluster, hour)
    while hour in states:
        hour += 1
    return Progress(max(span.since, newest or 0.0), max(span.since, hour * 3600.0))
