"""Nodes of a cluster that only a metric source knows.

Without Kubernetes, Slurm, a container engine or local GPUs, the nodes and GPUs in the readings make up
the fleet. Which GPUs are allocated is not known then.

A GPU whose series end stays a while, because a single failed scrape ends them, too. After `STALE`
seconds without readings its node is faulty, after `FORGOTTEN` seconds the GPU is removed, and with
its last GPU the node. While the metric source itself is down nothing changes: the readings stay.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from gpufleet.fleet.state import Fleet
from gpufleet.model.node import FleetNode
from gpufleet.model.reading import GpuIdentity, Readings

SOURCE = "metrics"
STALE = 300.0
FORGOTTEN = 3600.0
_ROWS_PER_STEP = 512
_NODES_PER_STEP = 64


class MetricNodes:
    """Keep the nodes of a fleet equal to those in the readings."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._gpus: tuple[GpuIdentity, ...] = ()
        self._present: dict[str, dict[int, GpuIdentity]] = {}
        self._missing: dict[str, dict[int, float]] = {}
        """When each GPU without readings was last seen, by node and index."""
        self._nodes: dict[str, FleetNode] = {}
        self._observed = 0.0

    def update(self, readings: Readings) -> Iterator[None]:
        """Put and drop nodes, in steps of a few milliseconds. Call it before the readings are put."""
        now = self._fleet.clock()
        if readings.gpus is not self._gpus:
            present: dict[str, dict[int, GpuIdentity]] = {}
            for row, gpu in enumerate(readings.gpus):
                if row % _ROWS_PER_STEP == 0:
                    yield
                present.setdefault(gpu.ref.node, {})[gpu.ref.index] = gpu
            self._remember_missing(present)
            self._gpus, self._present = readings.gpus, present
        elif not self._missing:
            self._observed = now
            return
        self._observed = now
        self._forget(now)
        for number, name in enumerate(sorted({*self._present, *self._missing, *self._nodes})):
            if number % _NODES_PER_STEP == 0:
                yield
            self._put(name, now)

    def _remember_missing(self, present: dict[str, dict[int, GpuIdentity]]) -> None:
        for name, gpus in self._present.items():
            for index in gpus.keys() - present.get(name, {}).keys():
                self._missing.setdefault(name, {})[index] = self._observed
        for name in self._missing.keys() & present.keys():
            for index in present[name]:
                self._missing[name].pop(index, None)

    def _forget(self, now: float) -> None:
        kept = {
            name: {index: since for index, since in gpus.items() if now - since < FORGOTTEN}
            for name, gpus in self._missing.items()
        }
        self._missing = {name: gpus for name, gpus in kept.items() if gpus}

    def _put(self, name: str, now: float) -> None:
        present, missing = self._present.get(name, {}), self._missing.get(name, {})
        if not present and not missing:
            del self._nodes[name]
            self._fleet.drop_node(name)
            return
        stale = {index: since for index, since in missing.items() if now - since >= STALE}
        models = {gpu.model for gpu in present.values() if gpu.model}
        known = self._nodes.get(name)
        node = FleetNode(
            name=name,
            source=SOURCE,
            allocation_known=False,
            ready=bool(present) or not stale,
            not_ready_reason=f"no readings since {_text(max(stale.values()))}" if stale else "",
            fault="" if not stale else f"no readings of GPU {min(stale)} since {_text(stale[min(stale)])}",
            gpu_count=len(present) + len(missing),
            gpu_model=models.pop() if len(models) == 1 else known.gpu_model if known and not present else "",
            created=known.created if known else now,
        )
        if node != known:
            self._nodes[name] = node
            self._fleet.put_node(node)


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
