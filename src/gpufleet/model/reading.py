"""What is measured on a GPU: quantities with fixed units, and readings kept in columns.

A fleet of 100,000 GPUs with a dozen quantities each would be millions of Python objects if
every reading were one. So a refresh is one `Readings`: the GPUs in order, and per quantity
two numpy columns, the values and the time at which each value was sampled. NaN in a column
means that the source has no such value; whoever asks for a single one gets None, never 0.
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
    """A thing measured on a GPU. The unit is fixed here, whatever the exporter's is."""

    UTILIZATION = "utilization"
    """Percent of time with work on the GPU, 0–100."""
    MEMORY_USED = "memory_used"
    """Bytes."""
    MEMORY_FREE = "memory_free"
    """Bytes."""
    MEMORY_TOTAL = "memory_total"
    """Bytes."""
    MEMORY_RESERVED = "memory_reserved"
    """Bytes that the driver keeps for itself."""
    MEMORY_UTILIZATION = "memory_utilization"
    """Percent of the memory in use, 0–100."""
    TEMPERATURE = "temperature"
    """Degrees Celsius."""
    POWER = "power"
    """Watts drawn."""
    POWER_LIMIT = "power_limit"
    """Watts that the GPU may draw."""
    ENERGY = "energy"
    """Joules since some start; only differences mean something."""
    TENSOR_ACTIVITY = "tensor_activity"
    """Share of cycles with the tensor cores at work, 0–1."""
    DRAM_ACTIVITY = "dram_activity"
    """Share of cycles with the memory at work, 0–1."""
    SM_ACTIVITY = "sm_activity"
    """Share of cycles with a multiprocessor at work, 0–1."""
    FABRIC_SENT = "fabric_sent"
    """Bytes per second sent over NVLink or XGMI."""
    FABRIC_RECEIVED = "fabric_received"
    """Bytes per second received over NVLink or XGMI."""
    FABRIC_TRAFFIC = "fabric_traffic"
    """Bytes per second over NVLink or XGMI, both ways together."""


class GpuRef(Struct, frozen=True, order=True, gc=False):
    """The name of a GPU in a cluster: its node, its index there, and its partition if it is cut."""

    node: str
    index: int
    partition: str = ""
    """MIG instance id or AMD partition id; empty for a whole GPU."""


class GpuUser(NamedTuple):
    """Who an exporter says uses a GPU: a container of a pod, or a Slurm job."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    pod_uid: str = ""
    job: str = ""
    user: str = ""


class GpuIdentity(Struct, frozen=True, gc=False):
    """A GPU as its exporter describes it; what the exporter does not say is empty."""

    ref: GpuRef
    uuid: str = ""
    model: str = ""
    vendor: str = ""
    """`NVIDIA`, `AMD`, or empty if not known."""
    profile: str = ""
    """MIG profile such as `1g.10gb`; empty for a whole GPU."""


class FaultKind(StrEnum):
    """What an exporter can report as wrong with a GPU."""

    XID = "xid"
    ECC_UNCORRECTED = "ecc_uncorrected"
    ROW_REMAP_FAILED = "row_remap_failed"
    RECOVERY_ACTION = "recovery_action"
    FATAL_EVENT = "fatal_event"
    UNHEALTHY = "unhealthy"


class Fault(Struct, frozen=True, gc=False):
    """Something wrong with a GPU, as an exporter reports it; a verdict is made of it elsewhere."""

    kind: FaultKind
    code: int
    """XID code, AMD field id or recovery action; 0 where the kind says all."""
    count: float
    """How often it was counted, or 1 for a state that is either there or not."""
    time: float
    """When the sample that says so was taken, in seconds since the epoch."""


@dataclass(frozen=True)
class Readings:
    """The latest readings of all GPUs of a cluster, ordered by node, index and partition.

    `values[q][i]` is quantity `q` of `gpus[i]`, sampled at `times[q][i]` (seconds since the
    epoch); both are NaN where there is none. A quantity that no GPU has may be missing.
    """

    taken_at: float
    """When this picture was put together, in seconds since the epoch; 0 if never."""
    gpus: tuple[GpuIdentity, ...] = ()
    values: Mapping[Quantity, Column] = field(default_factory=dict)
    times: Mapping[Quantity, Column] = field(default_factory=dict)
    holders: Mapping[int, tuple[GpuUser, ...]] = field(default_factory=dict)
    """By row: who the exporter says uses the GPU. Several share one that is time-sliced."""
    faults: Mapping[int, tuple[Fault, ...]] = field(default_factory=dict)
    """By row: what the exporter reports as wrong."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """By quantity (or `holders`, `faults`, `source`): why it could not be read this time."""

    def __len__(self) -> int:
        return len(self.gpus)

    @cached_property
    def rows(self) -> Mapping[GpuRef, int]:
        """Where each GPU stands."""
        return {gpu.ref: row for row, gpu in enumerate(self.gpus)}

    def value(self, row: int, quantity: Quantity) -> float | None:
        """One value, or None where the source has none."""
        return _present(self.values, row, quantity)

    def time(self, row: int, quantity: Quantity) -> float | None:
        """When that value was sampled, in seconds since the epoch."""
        return _present(self.times, row, quantity)

    def sampled_at(self, row: int) -> float | None:
        """The newest sample of one GPU, in seconds since the epoch."""
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
    """A process that uses a GPU; None is what the exporter does not say."""

    gpu: GpuRef
    pid: int
    name: str
    user: str
    command: str
    gpu_memory_bytes: float | None
    cpu_percent: float | None
    memory_percent: float | None
    time: float
    """When it was sampled, in seconds since the epoch."""


@dataclass(frozen=True)
class Processes:
    """All processes on GPUs, ordered by node, GPU and pid, and what could not be read of them."""

    rows: tuple[GpuProcess, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    """By field (`gpu_memory`, `cpu`, `memory`): why it could not be read."""


@dataclass(frozen=True)
class GpuSeries:
    """One quantity of one GPU over time; a point that is not there is left out."""

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
class StorageUse:
    """The file systems of a cluster together, each shared one counted once."""

    capacity_bytes: float
    used_bytes: float
    available_bytes: float


@dataclass(frozen=True, slots=True)
class RdmaPorts:
    """The InfiniBand ports of a cluster."""

    total: int
    active: int
    port_rate: float
    """The link rate that most ports have, in bytes per second; 0 if unknown."""
    total_rate: float
    """The link rates of the active ports together, in bytes per second."""
