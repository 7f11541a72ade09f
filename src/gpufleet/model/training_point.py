"""A number of a training job, apart from the columns of readings: who only reads logs needs no numpy."""

from typing import NamedTuple


class TrainingPoint(NamedTuple):
    """A number that a training job reported: its loss, its throughput."""

    metric: str
    value: float
    time: float
    """Seconds since the epoch."""
    rank: int | None = None
    source: str = ""
    """Who told it, where it was scraped: a pod, an exporter."""
