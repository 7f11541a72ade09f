"""What the aggregation routes read, as Protocols; the store keeps these promises."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gpufleet.model.statistics import (
    ClusterStatistics,
    HoursQuery,
    LabelStatistics,
    NamespaceStatistics,
    Snapshot,
    UsageSum,
    UsageTotals,
    WorkloadHoursQuery,
    WorkloadStatistics,
)


class Statistics(Protocol):
    """Hours of clusters, namespaces and labels; hours are numbered (Unix seconds / 3600)."""

    async def cluster_hours(self, wanted: HoursQuery) -> list[ClusterStatistics]:
        """Hours of a cluster."""
        ...

    async def count_cluster_hours(self, wanted: HoursQuery) -> int:
        """How many there are on all pages."""
        ...

    async def namespace_hours(self, wanted: HoursQuery, namespace: str) -> list[NamespaceStatistics]:
        """Hours of a namespace, or of all without a name."""
        ...

    async def count_namespace_hours(self, wanted: HoursQuery, namespace: str) -> int:
        """How many there are on all pages."""
        ...

    async def label_hours(
        self, wanted: HoursQuery, type_: str, key: str, value: str
    ) -> list[LabelStatistics]:
        """Hours of a value of a label or annotation, or of all values of the key."""
        ...

    async def count_label_hours(self, wanted: HoursQuery, type_: str, key: str, value: str) -> int:
        """How many there are on all pages."""
        ...

    async def namespaces(self, cluster: str, first: int, last: int) -> list[str]:
        """Namespaces in a span of hours, sorted."""
        ...

    async def dimension_keys(self, cluster: str, first: int, last: int, type_: str) -> list[str]:
        """Keys of labels or annotations in a span of hours, sorted."""
        ...

    async def dimension_values(self, cluster: str, first: int, last: int, type_: str, key: str) -> list[str]:
        """Values of one key in a span of hours, sorted."""
        ...


class Workloads(Protocol):
    """Hours of workloads."""

    async def page(self, wanted: WorkloadHoursQuery) -> tuple[int, list[WorkloadStatistics]]:
        """How many rows there are on all pages, and those of one."""
        ...


class Snapshots(Protocol):
    """Snapshots."""

    async def latest(self, cluster: str, now: float) -> Snapshot:
        """The newest; NotFound if there is none yet."""
        ...

    async def between(
        self, cluster: str, start: float, end: float, limit: int, offset: int, *, details: bool
    ) -> Sequence[Snapshot]:
        """Those of a span, in order."""
        ...

    async def count(self, cluster: str, start: float, end: float) -> int:
        """How many there are in a span."""
        ...


class Usage(Protocol):
    """Sums over days, each given by the number of its first hour."""

    async def totals(self, cluster: str, first: int, after: int) -> UsageTotals:
        """The whole cluster."""
        ...

    async def by_namespace(self, cluster: str, first: int, after: int) -> list[UsageSum]:
        """Each namespace, the largest first."""
        ...

    async def by_label(self, cluster: str, first: int, after: int, type_: str, key: str) -> list[UsageSum]:
        """Each value of a label or annotation, the largest first."""
        ...

    async def by_workload(self, cluster: str, first: int, after: int) -> list[UsageSum]:
        """Each workload, the largest first."""
        ...

    async def idle_workloads(
        self, cluster: str, first: int, after: int, limit: int, offset: int
    ) -> tuple[int, list[UsageSum]]:
        """How many workloads held GPUs that they did not use, and some of them, the worst first."""
        ...


class Series(Protocol):
    """GPU time over time, by hour or by day; each is named by the number of its first hour."""

    async def of_cluster(
        self, cluster: str, first: int, after: int, step: Literal["hour", "day"]
    ) -> dict[int, int]:
        """The whole cluster."""
        ...

    async def of_groups(
        self,
        cluster: str,
        first: int,
        after: int,
        step: Literal["hour", "day"],
        by: str,
        key: str,
        groups: Sequence[UsageSum],
    ) -> dict[tuple[str, str, str, str], dict[int, int]]:
        """Some groups, by namespace, kind, name and uid (empty where a grouping has none)."""
        ...


@dataclass(frozen=True)
class Books:
    """Everything that the routes read."""

    default: str
    """The cluster that is meant when none is named."""
    names: Callable[[], Awaitable[list[str]]]
    """Every cluster that was ever accounted for."""
    statistics: Statistics
    workloads: Workloads
    snapshots: Snapshots
    usage: Usage
    series: Series
