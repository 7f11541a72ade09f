"""Query parameters that several routes share.

`/api/v1/gpu-aggregation` spells its parameters in snake case, the other routes in camel case.
"""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

ClusterName = Annotated[str, Meta(max_length=253, description="Cluster; the default one if not given.")]
Namespace = Annotated[str, Meta(max_length=253, description="Namespace; all if not given.")]
Model = Annotated[
    str,
    Meta(
        max_length=253, description="GPU model in any spelling; a short name such as h100 for all its forms."
    ),
]
LabelSelector = Annotated[
    str, Meta(max_length=4096, description="Label selector as kubectl takes it, such as team=nlp,!old.")
]
Team = Annotated[str, Meta(max_length=253, description="Team, by its exact name.")]
User = Annotated[str, Meta(max_length=253, description="User; alice and alice@example.com are the same one.")]
PageNumber = Annotated[int, Meta(ge=1, le=1_000_000, description="Page number, from 1.")]
PageSize = Annotated[int, Meta(ge=1, le=1000, description="Rows per page.")]
Time = Annotated[datetime, Meta(tz=True, description="RFC 3339 with an offset; inclusive.")]
Direction = Annotated[Literal["asc", "desc"], Meta(description="Direction of the order.")]
DimensionType = Annotated[Literal["label", "annotation"], Meta(description="What the key belongs to.")]
DimensionKey = Annotated[str, Meta(min_length=1, max_length=317, description="Key, such as team.")]

_LAST_HOUR = 2**31 - 1
"""The largest hour number that the database can compare with."""


class ClusterParams(msgspec.Struct):
    """The cluster to read."""

    cluster: ClusterName = ""


class PageParams(ClusterParams, rename="camel"):
    """One page of a list."""

    page_num: PageNumber = 1
    page_size: PageSize = 10


class TimeRangeParams(ClusterParams):
    """A time range that may be open at both ends."""

    start_time: Time | None = None
    end_time: Time | None = None

    def __post_init__(self) -> None:
        """Reject a range that ends before it starts."""
        _check_order(self.start_time, self.end_time)

    @property
    def hours(self) -> tuple[int, int]:
        """The numbers of the first and the last whole hour in the range."""
        first = first_hour(self.start_time) if self.start_time else 0
        return max(first, -(2**31)), last_hour(self.end_time) if self.end_time else _LAST_HOUR


class DimensionKeyParams(TimeRangeParams, kw_only=True):
    """The keys of labels or of annotations."""

    dimension_type: DimensionType


class DimensionValueParams(DimensionKeyParams, kw_only=True):
    """The values of one key."""

    dimension_key: DimensionKey


class SnapshotParams(TimeRangeParams):
    """Snapshots of a time range; of the last 24 hours by default."""

    page: PageNumber | None = None
    page_size: PageSize | None = None
    details: Annotated[bool, Meta(description="Include the workloads of each snapshot.")] = False


class HourParams(ClusterParams, kw_only=True):
    """The hours whose `stat_hour` lies in a time range."""

    start_time: Time
    end_time: Time
    page: PageNumber | None = None
    page_size: PageSize | None = None
    order_direction: Direction = "asc"
    include_current: Annotated[
        bool, Meta(description="Also return the hour that is not over yet, with `partial` set.")
    ] = False

    def __post_init__(self) -> None:
        """Reject a range that ends before it starts."""
        _check_order(self.start_time, self.end_time)

    @property
    def paged(self) -> bool:
        """Whether the caller wants a page instead of all rows."""
        return self.page is not None or self.page_size is not None


class NamespaceHourParams(HourParams, kw_only=True):
    """Hours of one namespace, or of all."""

    namespace: Namespace = ""


class LabelHourParams(HourParams, kw_only=True):
    """Hours of the values of one key."""

    dimension_type: DimensionType
    dimension_key: DimensionKey
    dimension_value: Annotated[str, Meta(max_length=1024, description="Value; all if not given.")] = ""


class WorkloadHourParams(HourParams, kw_only=True):
    """Hours of workloads."""

    namespace: Namespace = ""
    workload_name: Annotated[str, Meta(max_length=253, description="Name; all if not given.")] = ""
    workload_type: Annotated[str, Meta(max_length=253, description="Kind; all if not given.")] = ""
    dimension_type: DimensionType = "label"
    dimension_key: Annotated[
        str, Meta(max_length=317, description="Only workloads with this label or annotation.")
    ] = ""
    dimension_value: Annotated[
        str, Meta(max_length=1024, description="Only with this value of `dimension_key`; any if not given.")
    ] = ""
    order_by: Annotated[Literal["time", "utilization"], Meta(description="Sort field.")] = "time"

    def __post_init__(self) -> None:
        """Reject a value without a key."""
        super().__post_init__()
        if self.dimension_value and not self.dimension_key:
            raise ValueError("dimension_value needs a dimension_key")


def first_hour(start: datetime) -> int:
    """Return the number (Unix seconds / 3600) of the first hour that starts at or after `start`."""
    return -int(-start.timestamp() // 3600)


def last_hour(end: datetime) -> int:
    """Return the number of the last hour that starts at or before `end`."""
    return int(end.timestamp() // 3600)


def _check_order(start: datetime | None, end: datetime | None) -> None:
    if start and end and start > end:
        raise ValueError("start_time must not be after end_time")
