"""What is measured on GPUs: quantities with fixed units, and readings in columns.

With one object per reading, 100,000 GPUs with a dozen quantities would be millions of Python objects.
So a refresh is one `Readings`: the GPUs in order, and per quantity two numpy columns, the values and the
times of their samples. NaN in a column means that there is no value; single values are None then, never 0.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpufleet.model.training_point import TrainingPoint as TrainingPoint

Column = NDArray[np.float64]


class Quantity(StrEnum):
    """A quantity measured on a GPU, in one unit for all exporters."""

    UTILIZATION = "utilization"
    """Percent of time with work on the GPU, 0–100."""
    MEMORY_USED = "memory_used"
    """Bytes."""
    MEMORY_FREE = "memory_free"
    """Bytes."""
    MEMORY_TOTAL = "memory_total"
    """Bytes."""
    MEMORY_RESERVED = "memory_reserved"
    """Bytes reserved by the driver."""
    MEMORY_UTILIZATION = "memory_utilization"
    """Percent of the memory in use, 0–100."""
    TEMPERATURE = "temperature"
    """Degrees Celsius."""
    POWER = "power"
    """Watts drawn."""
    POWER_LIMIT = "power_limit"
    """Watts that the GPU may draw."""
    SM_CLOCK = "sm_clock"
    """Hertz of the multiprocessors."""
    ENERGY = "energy"
    """Joules since an arbitrary start; only differences are meaningful."""
    TENSOR_ACTIVITY = "tensor_activity"
    """Share of cycles with active tensor cores, 0–1."""
    DRAM_ACTIVITY = "dram_activity"
    """Share of cycles with active memory, 0–1."""
    SM_ACTIVITY = "sm_activity"
    """Share of cycles with an active multiprocessor, 0–1."""
    FABRIC_SENT = "fabric_sent"
    """Bytes per second sent over NVLink or XGMI."""
    FABRIC_RECEIVED = "fabric_received"
    """Bytes per second received over NVLink or XGMI."""
    FABRIC_TRAFFIC = "fabric_traffic"
    """Bytes per second over NVLink or XGMI in both directions."""


class GpuRef(Struct, frozen=True, order=True, gc=False):
    """The name of a GPU in a cluster: node, index, and the partition if it is partitioned."""

    node: str
    index: int
    partition: str = ""
    """MIG instance id or AMD partition id; empty for a whole GPU."""


class GpuUser(NamedTuple):
    """The user of a GPU according to an exporter: a container of a pod, or a Slurm job."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    job: str = ""
    user: str = ""


class GpuIdentity(Struct, frozen=True, gc=False):
    """A GPU as its exporter describes it; unknown fields are empty."""

    ref: GpuRef
    uuid: str = ""
    model: str = ""
    vendor: str = ""
    """`NVIDIA`, `AMD`, or empty if unknown."""
    profile: str = ""
    """MIG profile such as `1g.10gb`; empty for a whole GPU."""


class FaultKind(StrEnum):
    """The faults that exporters report."""

    XID = "xid"
    ECC_UNCORRECTED = "ecc_uncorrected"
    ROW_REMAP_FAILED = "row_remap_failed"
    RECOVERY_ACTION = "recovery_action"
    FATAL_EVENT = "fatal_event"
    UNHEALTHY = "unhealthy"


class Fault(Struct, frozen=True, gc=False):
    """A fault that an exporter reports. Whether the GPU is usable is decided elsewhere."""

    kind: FaultKind
    code: int
    """XID code, AMD field id or recovery action; 0 if the kind has no codes."""
    count: float
    """The number of occurrences, or 1 for a state."""
    time: float
    """When it was sampled, in Unix seconds."""


@dataclass(frozen=True)
class Readings:
    """The latest readings of all GPUs of a cluster, ordered by node, index and partition.

    `values[q][i]` is quantity `q` of `gpus[i]`, sampled at `times[q][i]` (Unix seconds); both are NaN if
    there is no value. A quantity that no GPU has may be missing.
    """

    taken_at: float
    """When these readings were taken, in Unix seconds; 0 if never."""
    gpus: tuple[GpuIdentity, ...] = ()
    values: Mapping[Quantity, Column] = field(default_factory=dict)
    times: Mapping[Quantity, Column] = field(default_factory=dict)
    holders: Mapping[int, tuple[GpuUser, ...]] = field(default_factory=dict)
    """The users of the GPU by row; a time-sliced GPU has several."""
    faults: Mapping[int, tuple[Fault, ...]] = field(default_factory=dict)
    """The reported faults by row."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why something could not be read, by quantity (or `holders`, `faults`, `source`)."""

    def __len__(self) -> int:
        return len(self.gpus)

    @cached_property
    def rows(self) -> Mapping[GpuRef, int]:
        """The row of each GPU."""
        return {gpu.ref: row for row, gpu in enumerate(self.gpus)}

    def value(self, row: int, quantity: Quantity) -> float | None:
        """Return one value, or None if there is none."""
        return _present(self.values, row, quantity)

    def time(self, row: int, quantity: Quantity) -> float | None:
        """Return when that value was sampled, in Unix seconds."""
        return _present(self.times, row, quantity)

    def sampled_at(self, row: int) -> float | None:
        """Return the time of the newest sample of one GPU, in Unix seconds."""
        times = [time for quantity in self.times if (time := self.time(row, quantity)) is not None]
        return max(times, default=None)

    def rows_of(self, node: str) -> range:
        """Return the rows of one node's GPUs."""
        first = bisect_left(self.gpus, node, key=_node_of)
        return range(first, bisect_right(self.gpus, node, lo=first, key=_node_of))


def _node_of(gpu: GpuIdentity) -> str:
    return gpu.ref.node


def _present(columns: Mapping[Quantity, Column], row: int, quantity: Quantity) -> float | None:
    column = columns.get(quantity)
    if column is None:
        return None
    value = float(column[row])
    return None if value != value else value


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that uses a GPU; unknown numbers are None."""

    gpu: GpuRef
    pid: int
    name: str
    user: str
    command: str
    gpu_memory_bytes: float | None
    cpu_percent: float | None
    memory_percent: float | None
    time: float
    """When it was sampled, in Unix seconds."""


@dataclass(frozen=True)
class Processes:
    """All processes on GPUs, ordered by node, GPU and pid."""

    rows: tuple[GpuProcess, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    """Why a field (`gpu_memory`, `cpu`, `memory`) could not be read."""


@dataclass(frozen=True)
class GpuSeries:
    """One quantity of one GPU over time, without gaps."""

    gpu: GpuRef
    times: Column
    values: Column


@dataclass(frozen=True)
class SampleBlock:
    """One quantity of all GPUs on a grid of times: `values[i, t]` of `gpus[i]` at `times[t]`, or NaN."""

    gpus: tuple[GpuRef, ...]
    times: Column
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ExtremeBlock:
    """The lowest and highest readings of GPUs: `lowest[i, t]` of `gpus[i]` from `times[t]` to the next time, or NaN."""

    gpus: tuple[GpuRef, ...]
    times: Column
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StorageUse:
    """The file systems of a cluster in total; a shared one counts once."""

    capacity_bytes: float
    used_bytes: float
    available_bytes: float


@dataclass(frozen=True, slots=True)
class RdmaPorts:
    """The InfiniBand ports of a cluster."""

    total: int
    active: int
    port_rate: float
    """The most common link rate in bytes per second; 0 if unknown."""
    total_rate: float
    """The sum of the link rates of active ports, in bytes per second."""
