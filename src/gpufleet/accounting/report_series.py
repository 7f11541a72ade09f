"""The GPU-hours of a report over time: the largest groups, and all others together.

Pure. The others are the remainder of the cluster, so that the lines add up exactly to the total of the
report.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from gpufleet.model.hours import GPU_HOUR
from gpufleet.model.statistics import UsageSum

HOURLY_DAYS = 8
"""Periods up to this many days are shown by the hour, longer ones by the day."""


class ReportLine(msgspec.Struct, frozen=True, kw_only=True):
    """One group, or all groups without a line of their own (`others`)."""

    row: Literal["group", "others"]
    name: str
    namespace: str = ""
    kind: str = ""
    uid: str = ""
    gpu_hours: list[float]
    """In each hour or day of `times`."""


class ReportSeries(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours over time. Hours and days without data are left out."""

    step: Literal["hour", "day"]
    times: list[datetime]
    lines: list[ReportLine]


def step_of(hours: int) -> Literal["hour", "day"]:
    """Return the resolution for a period of so many hours."""
    return "hour" if hours <= HOURLY_DAYS * 24 else "day"


def report_series(
    step: Literal["hour", "day"],
    whole: Mapping[int, int],
    groups: Sequence[UsageSum],
    held: Mapping[tuple[str, str, str, str], Mapping[int, int]],
) -> ReportSeries:
    """Build the lines from GPU time by hour: of the cluster, and of each of `groups`."""
    hours = sorted(whole)
    lines = []
    rest = {hour: whole[hour] for hour in hours}
    for group in groups:
        own = held.get((group.namespace, group.kind, group.name, group.uid), {})
        for hour, amount in own.items():
            rest[hour] = rest.get(hour, 0) - amount
        lines.append(
            ReportLine(
                row="group",
                name=group.name,
                namespace=group.namespace,
                kind=group.kind,
                uid=group.uid,
                gpu_hours=[own.get(hour, 0) / GPU_HOUR for hour in hours],
            )
        )
    others = [rest[hour] / GPU_HOUR for hour in hours]
    if any(others):
        lines.append(ReportLine(row="others", name="others", gpu_hours=others))
    times = [datetime.fromtimestamp(hour * 3600, UTC) for hour in hours]
    return ReportSeries(step=step, times=times, lines=lines)
