"""The GPU-hours, cost and energy of a report over time: the largest groups, and all others together.

Pure. The others are the remainder of the cluster, so that the lines add up exactly to the total of the
report.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Literal

import msgspec

from gpufleet.model.hours import GPU_HOUR, KILOWATT_HOUR
from gpufleet.model.statistics import UsageAmount, UsageSum

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
    """In each hour or day of `times`, as are the others."""
    cost: list[float]
    energy_kwh: list[float | None]
    """Null without a reading of power."""


class ReportSeries(msgspec.Struct, frozen=True, kw_only=True):
    """GPU-hours, cost and energy over time. Hours and days without data are left out."""

    step: Literal["hour", "day"]
    times: list[datetime]
    lines: list[ReportLine]


def step_of(hours: int) -> Literal["hour", "day"]:
    """Return the resolution for a period of so many hours."""
    return "hour" if hours <= HOURLY_DAYS * 24 else "day"


def report_series(
    step: Literal["hour", "day"],
    whole: Mapping[int, UsageAmount],
    groups: Sequence[UsageSum],
    held: Mapping[tuple[str, str, str, str], Mapping[int, UsageAmount]],
) -> ReportSeries:
    """Build the lines from the use by hour: of the cluster, and of each of `groups`."""
    hours = sorted(whole)
    lines = []
    rest = dict(whole)
    for group in groups:
        uid = "" if group.runs else group.uid
        own = held.get((group.namespace, group.kind, group.name, uid), {})
        for hour, amount in own.items():
            rest[hour] = _less(rest.get(hour, _NOTHING), amount)
        lines.append(_line(group, [own.get(hour, _NOTHING) for hour in hours]))
    others = [rest[hour] for hour in hours]
    if any(amount.allocated for amount in others):
        lines.append(_line(None, others))
    times = [datetime.fromtimestamp(hour * 3600, UTC) for hour in hours]
    return ReportSeries(step=step, times=times, lines=lines)


def by_day(hours: Mapping[int, UsageAmount], zone: tzinfo) -> dict[int, UsageAmount]:
    """Add up hours to days in a time zone, by the number of their first hour; an hour counts for the day it ends in."""
    days: dict[int, UsageAmount] = {}
    for hour, amount in sorted(hours.items()):
        midnight = datetime.fromtimestamp(hour * 3600 + 3599, zone).replace(hour=0, minute=0, second=0)
        day = int(midnight.timestamp()) // 3600
        days[day] = _plus(days.get(day, _NOTHING), amount)
    return days


_NOTHING = UsageAmount()


def _plus(sum_: UsageAmount, more: UsageAmount) -> UsageAmount:
    known = [each.energy for each in (sum_, more) if each.energy is not None]
    return UsageAmount(sum_.allocated + more.allocated, sum_.cost + more.cost, sum(known) if known else None)


def _less(whole: UsageAmount, part: UsageAmount) -> UsageAmount:
    energy = None if whole.energy is None else whole.energy - (part.energy or 0)
    return UsageAmount(whole.allocated - part.allocated, whole.cost - part.cost, energy)


def _line(group: UsageSum | None, amounts: Sequence[UsageAmount]) -> ReportLine:
    """Return the line of a group, or that of all others."""
    return ReportLine(
        row="group" if group else "others",
        name=group.name if group else "others",
        namespace=group.namespace if group else "",
        kind=group.kind if group else "",
        uid=group.uid if group else "",
        gpu_hours=[amount.allocated / GPU_HOUR for amount in amounts],
        cost=[round(float(amount.cost), 6) + 0.0 for amount in amounts],
        energy_kwh=[None if amount.energy is None else amount.energy / KILOWATT_HOUR for amount in amounts],
    )
