"""A number of a training job. In its own module, so that log readers need no numpy."""

from typing import NamedTuple


class TrainingPoint(NamedTuple):
    """A number that a training job reported, such as its loss or throughput."""

    metric: str
    value: float
    time: float
    """Unix seconds."""
    rank: int | None = None
    source: str = ""
    """The pod or exporter it was scraped from."""
