"""Numbers of a training job. In their own module, so that log readers need no numpy."""

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


class RankProgress(NamedTuple):
    """The last training step that a rank reported."""

    rank: int | None
    """None for the whole job."""
    step: float
    at: float
    """Unix seconds."""
    every: float = 0.0
    """Mean seconds between its last reports; 0 if there is only one."""
    rate: float = 0.0
    """Steps per second in its last reports."""
