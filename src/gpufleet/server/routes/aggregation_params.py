"""What `/api/v1/gpu-aggregation` can be asked: query parameters and pages."""

from datetime import datetime
from typing import Annotated, Generic, Literal, TypeVar

import msgspec
from msgspec import Meta

T = TypeVar("T")

MOST_ROWS = 100_000
"""Rows that an answer without pages may have."""
DEFAULT_PAGE_SIZE = 20

ClusterName = Annotated[str, Meta(max_length=253, description="Cluster; the default one if not given.")]
Moment = Annotated[datetime, Meta(tz=True, description="RFC 3339 with an offset; inclusive.")]
PageNumber = Annotated[int, Meta(ge=1, le=1_000_000, description="Page number, from 1.")]
PageSize = Annotated[int, Meta(ge=1, le=1000, description="Rows per page.")]
Direction = Annotated[Literal["asc", "desc"], Meta(description="Direction of the order.")]
DimensionType = Annotated[Literal["label", "annotation"], Meta(description="What the key is of.")]
DimensionKey = Annotated[str, Meta(min_length=1, max_length=317, description="Key, such as team.")]


class Page(msgspec.Struct, Generic[T]):
    """Some rows, and how many there are."""

    total: int
    page: int
    page_size: int
    total_pages: int
    data: list[T]


class ClusterAsked(msgspec.Struct):
    """Which cluster."""

    cluster: ClusterName = ""


class MaybeSpan(msgspec.Struct):
    """A span of time that may be open at both ends."""

    cluster: ClusterName = ""
    start_time: Moment | None = None
    end_time: Moment | None = None

    def __post_init__(self) -> None:
        """Refuse a span that ends before it starts."""
        if self.start_time and self.end_time and self.start_time > self.end_time:
            raise ValueError("start_time must not be after end_time")

    @property
    def hours(self) -> tuple[int, int]:
        """The numbers of the first and the last hour within."""
        first = -int(-self.start_time.timestamp() // 3600) if self.start_time else 0
        last = int(self.end_time.timestamp() // 3600) if self.end_time else 2**31 - 1
        return max(first, -(2**31)), last


class DimensionKeysAsked(MaybeSpan, kw_only=True):
    """Keys of which kind."""

    dimension_type: DimensionType


class DimensionValuesAsked(DimensionKeysAsked, kw_only=True):
    """Values of which key."""

    dimension_key: DimensionKey


class HoursAsked(msgspec.Struct, kw_only=True):
    """Which hours, compared with `stat_hour`."""

    cluster: ClusterName = ""
    start_time: Moment
    end_time: Moment
    page: PageNumber | None = None
    page_size: PageSize | None = None
    order_direction: Direction = "asc"

    def __post_init__(self) -> None:
        """Refuse a span that ends before it starts."""
        if self.start_time > self.end_time:
            raise ValueError("start_time must not be after end_time")

    @property
    def paged(self) -> bool:
        """Whether a page is asked for."""
        return self.page is not None or self.page_size is not None


class NamespaceHoursAsked(HoursAsked, kw_only=True):
    """Hours of one namespace, or of all."""

    namespace: Annotated[str, Meta(max_length=253, description="Namespace; all if not given.")] = ""


class LabelHoursAsked(HoursAsked, kw_only=True):
    """Hours of the values of one key."""

    dimension_type: DimensionType
    dimension_key: DimensionKey
    dimension_value: Annotated[str, Meta(max_length=1024, description="Value; all if not given.")] = ""


class WorkloadHoursAsked(HoursAsked, kw_only=True):
    """Hours of workloads."""

    namespace: Annotated[str, Meta(max_length=253, description="Namespace; all if not given.")] = ""
    workload_name: Annotated[str, Meta(max_length=253, description="Name; all if not given.")] = ""
    workload_type: Annotated[str, Meta(max_length=253, description="Kind; all if not given.")] = ""
    order_by: Annotated[Literal["time", "utilization"], Meta(description="What to order by.")] = "time"


class SnapshotsAsked(MaybeSpan):
    """Which snapshots; the last 24 hours if not said."""

    page: PageNumber | None = None
    page_size: PageSize | None = None
    details: Annotated[bool, Meta(description="Also tell who had what.")] = False
