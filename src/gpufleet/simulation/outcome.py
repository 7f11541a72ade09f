"""What a simulation measured, and the same as plain data."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpufleet.simulation.unit import size_order


@dataclass(frozen=True, slots=True)
class Sample:
    """The fleet at one time."""

    time: float
    allocated_percent: float
    fragmented_percent: float
    waiting: int


@dataclass
class Outcome:
    """The result of one scenario."""

    scenario: str
    seed: int
    nodes: int
    gpus: int
    begin: float
    end: float
    arrived: int = 0
    started: int = 0
    completed: int = 0
    impossible: int = 0
    """Units that would not fit on the empty fleet; they are left out."""
    gave_up: int = 0
    """Units that were deleted before they started."""
    preemptions: int = 0
    failures: int = 0
    """Units that were interrupted because a node failed."""
    lost_gpu_hours: float = 0.0
    """GPU hours of interrupted runs, which start again from the beginning."""
    allocated_gpu_hours: float = 0.0
    absent_gpu_hours: float = 0.0
    """GPU hours of nodes that were not there."""
    cost: float = 0.0
    """The price of the allocated GPU hours."""
    capacity_cost: float = 0.0
    """The price of all GPUs of the fleet in the simulated time."""
    waits: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """Seconds from arrival to the first start, by queue and size."""
    unstarted: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """Seconds that units have waited that did not start."""
    use: dict[str, float] = field(default_factory=dict)
    """Allocated GPU hours by queue."""
    samples: list[Sample] = field(default_factory=list)
    seconds: float = 0.0
    """How long the simulation took."""

    @property
    def allocation_percent(self) -> float:
        """Return the allocated share of all GPU hours."""
        hours = self.gpus * (self.end - self.begin) / 3600 - self.absent_gpu_hours
        return 100.0 * self.allocated_gpu_hours / hours if hours else 0.0

    @property
    def fragmentation_percent(self) -> float:
        """Return the mean free capacity that the next task is not expected to use, of all capacity."""
        return float(np.mean([sample.fragmented_percent for sample in self.samples])) if self.samples else 0.0

    def report(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        everything = [wait for waits in self.waits.values() for wait in waits]
        return {
            "scenario": self.scenario,
            "seed": self.seed,
            "nodes": self.nodes,
            "gpus": self.gpus,
            "days": round((self.end - self.begin) / 86400, 3),
            "allocation_percent": round(self.allocation_percent, 3),
            "fragmentation_percent": round(self.fragmentation_percent, 3),
            "arrived": self.arrived,
            "started": self.started,
            "completed": self.completed,
            "unstarted": sum(map(len, self.unstarted.values())),
            "impossible": self.impossible,
            "gave_up": self.gave_up,
            "preemptions": self.preemptions,
            "failures": self.failures,
            "lost_gpu_hours": round(self.lost_gpu_hours, 1),
            "allocated_gpu_hours": round(self.allocated_gpu_hours, 1),
            "cost": round(self.cost, 2),
            "capacity_cost": round(self.capacity_cost, 2),
            "wait_seconds": summary(everything),
            "wait_by_queue": self._by(0),
            "wait_by_size": self._by(1),
            "wait_by_queue_and_size": [
                {"queue": queue, "size": size, **summary(self.waits[queue, size])}
                for queue, size in sorted(self.waits, key=lambda key: (key[0], size_order(key[1])))
            ],
            "gpu_hours_by_queue": {queue: round(hours, 1) for queue, hours in sorted(self.use.items())},
            "samples": [
                [
                    round(each.time),
                    round(each.allocated_percent, 2),
                    round(each.fragmented_percent, 2),
                    each.waiting,
                ]
                for each in self.samples
            ],
            "seconds": round(self.seconds, 2),
        }

    def _by(self, part: int) -> dict[str, dict[str, float]]:
        found: dict[str, list[float]] = {}
        for key, waits in self.waits.items():
            found.setdefault(key[part], []).extend(waits)
        names: Iterable[str] = sorted(found, key=size_order) if part else sorted(found)
        return {name: summary(found[name]) for name in names}


def summary(waits: Sequence[float]) -> dict[str, float]:
    """Return number, mean, median and 95th percentile."""
    if not waits:
        return {"units": 0, "mean": 0.0, "median": 0.0, "p95": 0.0}
    median, p95 = np.quantile(waits, (0.5, 0.95))
    return {
        "units": len(waits),
        "mean": round(float(np.mean(waits)), 1),
        "median": round(float(median), 1),
        "p95": round(float(p95), 1),
    }
