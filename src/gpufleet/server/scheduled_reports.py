"""Send usage reports by webhook and mail at fixed times.

One server of a database sends them, each once. The message has the totals, the largest groups and a link to the usage
page of the dashboard; a mail also has all rows attached as CSV. A report whose time passes while no server runs is not
sent later: it can be read at any time from `/api/v1/gpu-aggregation/report`.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from gpufleet.accounting.report import Report, ReportPeriod, grouping_of, period_of
from gpufleet.errors import GpufleetError, LeadershipLost
from gpufleet.runtime.alert_routes import AlertRoutes
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import ReportSettings
from gpufleet.server.routes.accounting.report import rows_as_csv

MOST_NAMED = 5
LONGEST_SLEEP = 3600.0
"""The clock is read again at least this often, because it may be set."""
_log = get_logger("reports")

Build = Callable[[str, ReportPeriod], Awaitable[Report]]
"""Returns the report of a cluster."""

Claim = Callable[[str, str], Awaitable[bool]]
"""Records that the report of a cluster and a period is being sent; returns False if it was before."""


class ScheduledReports:
    """Sends the reports of `clusters`."""

    def __init__(
        self,
        settings: ReportSettings,
        routes: AlertRoutes,
        clusters: list[str],
        build: Build,
        claim: Claim,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        longest_sleep: float = LONGEST_SLEEP,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._clusters = clusters
        self._build = build
        self._claim = claim
        self._now = now
        self._longest_sleep = longest_sleep

    async def run(self) -> None:
        """Send reports when they are due, until cancelled."""
        while True:
            due = next_time(self._settings.schedule, self._settings.hour, self._now())
            while (left := (due - self._now()).total_seconds()) > 0:  # noqa: ASYNC110  (waits for a time)
                await asyncio.sleep(min(left, self._longest_sleep))
            await self.send(due)

    async def send(self, at: datetime) -> None:
        """Send the reports that are due at a time."""
        period = period_of(last_period(self._settings.schedule, at))
        for cluster in self._clusters:
            try:
                made = await self._build(cluster, period)
                if not await self._claim(cluster, period.name):
                    continue
            except LeadershipLost:
                raise
            except GpufleetError as error:
                _log.warning("report_not_sent", cluster=cluster, period=period.name, error=str(error))
                continue
            name = re.sub(r"[^\w.-]+", "-", f"gpu-use-{cluster}-{period.name}.csv")
            subject = f"GPU use of {cluster}, {period.name}"
            text = "\n".join(filter(None, [summary(made), self._link(made)]))
            await self._routes.send(subject, text, rows_as_csv(made), name)
            _log.info("report_sent", cluster=cluster, period=period.name)

    def _link(self, report: Report) -> str:
        """Return the address of the usage page with the report; empty if that of the dashboard is not known."""
        return usage_page(self._settings.dashboard, report) if self._settings.dashboard else ""


def usage_page(dashboard: str, report: Report) -> str:
    """Return the address at which the dashboard shows a report."""
    grouping = grouping_of(report.group_by)
    query = {
        "cluster": report.cluster_name,
        "period": "dates",
        "from": f"{report.start_time:%Y-%m-%d}",
        "to": f"{report.end_time - timedelta(days=1):%Y-%m-%d}",
        "by": grouping.by,
        **({"key": grouping.key} if grouping.key else {}),
    }
    return f"{dashboard.rstrip('/')}/#/usage?{urlencode(query)}"


def next_time(schedule: str, hour: int, now: datetime) -> datetime:
    """Return the next time after `now` at which a report is due."""
    at = now.replace(hour=hour, minute=0, second=0, microsecond=0)
    while at <= now or (schedule == "weekly" and at.weekday()) or (schedule == "monthly" and at.day > 1):
        at += timedelta(days=1)
    return at


def last_period(schedule: str, at: datetime) -> str:
    """Return the last whole day, week or month before a time, as the report API takes it."""
    yesterday = at - timedelta(days=1)
    if schedule == "monthly":
        return f"{at.replace(day=1) - timedelta(days=1):%Y-%m}"
    if schedule == "weekly":
        return f"{at - timedelta(days=7):%Y-%m-%d}..{yesterday:%Y-%m-%d}"
    return f"{yesterday:%Y-%m-%d}"


def summary(report: Report) -> str:
    """Return the totals of a report and its largest groups in a few lines."""
    totals, unit = report.totals, f" {report.currency}" if report.currency else ""
    cost = f", cost {totals.cost:,.2f}{unit}" if totals.cost else ""
    energy = "" if totals.energy_kwh is None else f", {totals.energy_kwh:,.0f} kWh"
    lines = [
        f"GPU use of {report.cluster_name}, {report.period}: {totals.allocated_gpu_hours:,.0f} of "
        f"{totals.capacity_gpu_hours:,.0f} GPU-hours allocated ({totals.allocation_rate:.1f}%), "
        f"{totals.idle_gpu_hours:,.0f} of them idle{cost}{energy}"
    ]
    groups = [row for row in report.rows if row.row == "group"]
    for row in groups[:MOST_NAMED]:
        price = f", {row.cost:,.2f}{unit}" if totals.cost else ""
        lines.append(f"• {row.name}: {row.gpu_hours:,.1f} GPU-hours{price}")
    if len(groups) > MOST_NAMED:
        lines.append(f"• and {len(groups) - MOST_NAMED} more")
    return "\n".join(lines)
