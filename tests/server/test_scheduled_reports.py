"""Scheduled reports: when they are due, which period they are about, and what is sent."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email import message_from_string
from typing import Any

import msgspec
import pytest
from aiohttp import web
from tests.smtp_server import smtp_server

from gpufleet.accounting.report import Report, ReportPeriod, period_of, report
from gpufleet.errors import LeadershipLost, StoreUnavailable
from gpufleet.model.hours import GPU_HOUR
from gpufleet.model.statistics import UsageSum, UsageTotals
from gpufleet.runtime.alert_routes import AlertRoutes
from gpufleet.runtime.settings import AlertSettings, ReportSettings
from gpufleet.server.scheduled_reports import ScheduledReports, last_period, next_time, usage_page
from gpufleet.store import Store

MONDAY = datetime(2026, 3, 2, 7, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "due", "period"),
    [
        ("daily", datetime(2026, 3, 3, 6, tzinfo=UTC), "2026-03-02"),
        ("weekly", datetime(2026, 3, 9, 6, tzinfo=UTC), "2026-03-02..2026-03-08"),
        ("monthly", datetime(2026, 4, 1, 6, tzinfo=UTC), "2026-03"),
    ],
)
def test_a_report_is_due_after_the_end_of_its_period(schedule: str, due: datetime, period: str) -> None:
    assert next_time(schedule, 6, MONDAY) == due
    assert next_time(schedule, 6, due) > due
    assert last_period(schedule, due) == period


async def build(cluster: str, period: ReportPeriod) -> Report:
    if cluster == "broken":
        raise StoreUnavailable("the database is stopping")
    group = UsageSum(name="nlp", allocated=30 * GPU_HOUR, idle=0, cost=60, utilization=50.0)  # type: ignore[arg-type]
    totals = UsageTotals(hours=24, capacity=48 * GPU_HOUR, allocated=30 * GPU_HOUR, cost=60)  # type: ignore[arg-type]
    return report(cluster, period, "namespace", totals, [group], currency="EUR")


async def claim(cluster: str, period: str) -> bool:
    return True


@pytest.fixture
async def received() -> AsyncIterator[tuple[str, list[Any]]]:
    got: list[Any] = []

    async def handle(request: web.Request) -> web.Response:
        got.append(await request.json())
        return web.Response()

    app = web.Application()
    app.router.add_post("/hook", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook", got
    await runner.cleanup()


async def test_the_webhook_gets_totals_and_a_cluster_that_fails_does_not_stop_the_others(
    received: tuple[str, list[Any]],
) -> None:
    url, got = received
    routes = AlertRoutes(AlertSettings(webhook=url))
    reports = ScheduledReports(ReportSettings(schedule="daily"), routes, ["broken", "prod"], build, claim)
    await reports.send(datetime(2026, 3, 3, 6, tzinfo=UTC))
    [message] = got
    assert message["text"].splitlines() == [
        "GPU use of prod, 2026-03-02: 30 of 48 GPU-hours allocated (62.5%), 0 of them idle, cost 60.00 EUR",
        "• nlp: 30.0 GPU-hours, 60.00 EUR",
    ]


async def test_a_server_that_led_once_does_not_send_a_report_again(
    received: tuple[str, list[Any]], store: Store
) -> None:
    url, got = received
    routes = AlertRoutes(AlertSettings(webhook=url))
    reports = ScheduledReports(
        ReportSettings(schedule="daily"), routes, ["prod"], build, store.sent_reports.claim
    )
    due = datetime(2026, 3, 3, 6, tzinfo=UTC)
    async with store.leadership("reports") as old:
        pass
    async with store.leadership("reports") as new:
        with new.fence.applied():
            await reports.send(due)
            await reports.send(due)
        assert len(got) == 1
        with old.fence.applied(), pytest.raises(LeadershipLost):
            await reports.send(datetime(2026, 3, 4, 6, tzinfo=UTC))
    assert len(got) == 1


async def test_a_mail_has_the_rows_attached_as_csv_and_a_link_to_the_usage_page() -> None:
    async with smtp_server() as (address, mails):
        settings = AlertSettings(smtp=address, mail_to=("finance@example.com",))
        own = ReportSettings(schedule="monthly", dashboard="https://gpus.example.com/")
        reports = ScheduledReports(own, AlertRoutes(settings), ["prod"], build, claim)
        await reports.send(datetime(2026, 4, 1, 6, tzinfo=UTC))
    mail = message_from_string(mails[0])
    assert mail["Subject"] == "GPU use of prod, 2026-03"
    text, attachment = [part for part in mail.walk() if not part.is_multipart()]
    assert (text.get_content_type(), attachment.get_content_type()) == ("text/plain", "text/csv")
    words = text.get_payload(decode=True)
    assert isinstance(words, bytes)
    assert words.decode().splitlines()[-1] == (
        "https://gpus.example.com/#/usage?cluster=prod&period=dates&from=2026-03-01&to=2026-03-31&by=namespace"
    )
    assert attachment.get_filename() == "gpu-use-prod-2026-03.csv"
    table = attachment.get_payload(decode=True)
    assert isinstance(table, bytes)
    rows = list(csv.DictReader(io.StringIO(table.decode())))
    assert [(row["name"], row["gpu_hours"]) for row in rows] == [
        ("nlp", "30.0"),
        ("unattributed", "0.0"),
        ("unallocated", "18.0"),
    ]


async def test_the_link_of_a_report_by_label_names_the_key() -> None:
    made = msgspec.structs.replace(
        await build("prod", period_of("2026-03-02..2026-03-08")), group_by="label:team"
    )
    assert usage_page("http://gpus", made) == (
        "http://gpus/#/usage?cluster=prod&period=dates&from=2026-03-02&to=2026-03-08&by=label&key=team"
    )


async def test_reports_are_sent_once_when_they_are_due(received: tuple[str, list[Any]]) -> None:
    url, got = received
    moments = iter([MONDAY, MONDAY, datetime(2026, 3, 3, 6, 0, 1, tzinfo=UTC)])
    later = asyncio.Event()

    def now() -> datetime:
        moment = next(moments, None)
        if moment is None:
            later.set()
        return moment or datetime(2026, 3, 3, 6, 0, 2, tzinfo=UTC)

    routes = AlertRoutes(AlertSettings(webhook=url))
    reports = ScheduledReports(
        ReportSettings(schedule="daily"), routes, ["prod"], build, claim, now, longest_sleep=0.01
    )
    running = asyncio.create_task(reports.run())
    await asyncio.wait_for(later.wait(), 10)
    running.cancel()
    await asyncio.wait([running])
    assert len(got) == 1
