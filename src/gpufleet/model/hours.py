"""Hourly statistics, which teams are billed by.

Amounts are integers: time in milliseconds, shares of a GPU in millionths (`PPM`), utilization in
ten-thousandths of a percent. Sums of integers don't depend on their order, so an hour that is computed
twice, or by two servers, is the same to the last digit. They become decimals only at the end.
"""

import msgspec

HOUR_MS = 3_600_000
PPM = 1_000_000
"""One whole GPU."""
PERCENT = 10_000
"""One percent of utilization."""
IDLE_BELOW = 5
"""An allocated GPU with a utilization below this percentage is idle, live and in accounting."""
KILOWATT_HOUR = 3_600_000_000
"""In millijoules."""
GPU_HOUR = HOUR_MS * PPM
"""One GPU for one hour, in millisecond-millionths."""


class Distribution(msgspec.Struct, frozen=True):
    """The distribution of utilization in percent over the samples of an hour; None without samples."""

    samples: int = 0
    mean: float | None = None
    highest: float | None = None
    lowest: float | None = None
    p50: float | None = None
    p95: float | None = None


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a group of pods used in an hour."""

    allocated: int
    """In millisecond-millionths; see `GPU_HOUR`."""
    idle: int
    """Allocated, but with a utilization below 5%; in millisecond-millionths."""
    utilization: Distribution
    workloads: int
    cost: float
    energy: int | None = None
    """Millijoules; None without a reading of power."""

    @property
    def allocated_gpu_hours(self) -> float:
        """Also the time-weighted number of GPUs, as it is one hour."""
        return self.allocated / GPU_HOUR

    @property
    def idle_gpu_hours(self) -> float:
        """As `idle`."""
        return self.idle / GPU_HOUR


class ClusterHour(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of a whole cluster."""

    capacity_gpu_hours: float
    gpus: int
    """The number of GPUs for most of the observed time."""
    observed: int
    """Milliseconds in which a server followed the cluster."""
    usage: Usage


class NamespaceHour(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of a namespace."""

    namespace: str
    usage: Usage


class LabelHour(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of all pods with one value of a label or annotation."""

    dimension_type: str
    dimension_key: str
    dimension_value: str
    usage: Usage


class WorkloadHour(msgspec.Struct, frozen=True, kw_only=True):
    """One hour of a workload."""

    namespace: str
    kind: str
    name: str
    uid: str
    source: str
    labels: dict[str, str]
    annotations: dict[str, str]
    running: bool
    """Whether it held GPUs when the hour ended."""
    requested_gpus: float
    """The most GPUs that it held at one time."""
    mean_replicas: float
    """Over the time in which it held GPUs."""
    most_replicas: int
    fewest_replicas: int
    mean_memory_used: float | None
    """GiB per GPU."""
    most_memory_used: float | None
    mean_memory_total: float | None
    usage: Usage


class Hour(msgspec.Struct, frozen=True, kw_only=True):
    """All statistics of one hour of one cluster. `start` is Unix seconds."""

    start: int
    cluster: ClusterHour
    namespaces: tuple[NamespaceHour, ...]
    labels: tuple[LabelHour, ...]
    workloads: tuple[WorkloadHour, ...]
