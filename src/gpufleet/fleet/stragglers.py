"""Find GPUs that are far slower than the other GPUs of their job.

The ranks of a training job do the same work at the same time, so one GPU with half the utilization or power of its
siblings holds all of them up, or has stopped. A difference counts when it lasts: data loading and checkpoints are uneven.
"""

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workload_summary import Workload
from gpufleet.model.reading import Quantity
from gpufleet.model.workload import Status

MIN_GPUS = 4
"""Jobs with fewer GPUs have too few siblings to compare."""
BUSY_PERCENT = 50.0
"""Median utilization of a job below which it is not compared."""
SHARES = {Quantity.UTILIZATION: 0.5, Quantity.POWER: 0.6}
"""Shares of the median below which a GPU is suspect."""
LASTING = 120.0
"""Seconds for which a GPU must be suspect."""
_WORKLOADS_PER_STEP = 200


class Straggler(NamedTuple):
    """A GPU that is slower than its siblings; `rank` is the position of its pod in the job, by name."""

    workload_uid: str
    workload: str
    namespace: str
    pod: str
    rank: int
    node: str
    gpu: int
    quantity: Quantity
    value: float
    median: float
    since: float


class StragglerWatch:
    """Remember since when GPUs are suspect."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._since: dict[tuple[str, str, int, Quantity], float] = {}
        self._suspects: list[Straggler] = []
        self._checked_at = 0.0

    def stragglers(self) -> list[Straggler]:
        """Return the GPUs that have been suspect for long enough."""
        return [each for each in self._suspects if self._checked_at - each.since >= LASTING]

    def check_steps(self, now: float) -> Iterator[None]:
        """Compare all jobs, in steps; to be called once per reading."""
        suspects: list[Straggler] = []
        for number, workload in enumerate(list(self._fleet.workloads().values())):
            if number % _WORKLOADS_PER_STEP == 0:
                yield
            if workload.gpus >= MIN_GPUS and workload.status is Status.RUNNING:
                suspects += self._suspects_of(workload, now)
        self._since = {_key(each): each.since for each in suspects}
        self._suspects, self._checked_at = suspects, now

    def _suspects_of(self, workload: Workload, now: float) -> list[Straggler]:
        columns = self._fleet.gpu_columns
        places = [
            (rank, pod, index, slot)
            for rank, pod in enumerate(sorted(workload.counted, key=lambda pod: pod.name))
            for index in self._fleet.gpus_of(pod)
            for slot in columns.slots_of(pod.node, [index])
        ]
        busy = columns.column(Quantity.UTILIZATION)
        used = [float(busy[slot]) for *_, slot in places if busy[slot] == busy[slot]]
        if len(used) < MIN_GPUS or median(used) < BUSY_PERCENT:
            return []
        found = []
        for quantity, share in SHARES.items():
            column = columns.column(quantity)
            known = [
                (each, float(column[each[-1]])) for each in places if column[each[-1]] == column[each[-1]]
            ]
            if len(known) < MIN_GPUS:
                continue
            middle = median(value for _, value in known)
            for (rank, pod, index, _), value in known:
                if value < share * middle:
                    key = (workload.uid, pod.node, index, quantity)
                    found.append(
                        Straggler(
                            workload.uid,
                            workload.name,
                            workload.namespace,
                            pod.name,
                            rank,
                            pod.node,
                            index,
                            quantity,
                            value,
                            middle,
                            self._since.get(key, now),
                        )
                    )
        return found


def _key(each: Straggler) -> tuple[str, str, int, Quantity]:
    return (each.workload_uid, each.node, each.gpu, each.quantity)
