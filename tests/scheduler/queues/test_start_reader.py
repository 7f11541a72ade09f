from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpufleet.kubernetes import Timing
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.queues.start_reader import PATH, StartReader, rounded

NOW = datetime(2026, 10, 5, 12, 1, tzinfo=UTC)
KEY = ("ml", "train")


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async def queue(request: web.Request) -> web.Response:
        assert request.query == {"cluster": "prod"}
        estimate = {"position": 1, "waitsFor": "", "expectedStart": "2026-10-05T12:40:00Z"}
        unit = {"namespace": "ml", "name": "ml/train-0", "claims": ["train"], "estimate": estimate}
        return web.json_response({"data": {"data": [unit]}})

    app = web.Application()
    app.router.add_get(PATH, queue)
    server = TestServer(app)
    async with server:
        yield server


def reader(url: str = "") -> tuple[StartReader, list[tuple[str, str]]]:
    settings = SchedulerSettings(server_url=url, server_cluster="prod")
    changed: list[tuple[str, str]] = []
    timing = Timing(now=lambda: NOW)
    return StartReader(settings, timing, lambda: True, lambda *key: changed.append(key)), changed


async def test_the_expected_starts_of_claims_are_read_and_stay_while_the_server_is_down(
    server: TestServer,
) -> None:
    starts, changed = reader(str(server.make_url("/")))
    async with aiohttp.ClientSession() as session:
        await starts.read(session)
        assert starts.expected(KEY) == datetime(2026, 10, 5, 12, 40, tzinfo=UTC)
        await server.close()
        await starts.read(session)
    assert starts.expected(KEY) == datetime(2026, 10, 5, 12, 40, tzinfo=UTC)
    assert changed == [KEY]


def test_a_time_is_written_again_only_if_it_is_clearly_wrong() -> None:
    starts, changed = reader()
    starts.update({KEY: NOW + timedelta(hours=4)})
    first = starts.expected(KEY)
    assert first is not None
    for minutes in (-60, 30, 60, 90):
        starts.update({KEY: NOW + timedelta(hours=4, minutes=minutes)})
    assert (starts.expected(KEY), changed) == (first, [KEY])
    starts.update({KEY: NOW + timedelta(hours=9)})
    assert starts.expected(KEY) == rounded(NOW + timedelta(hours=9), NOW)
    assert changed == [KEY, KEY]


def test_a_claim_that_starts_now_or_does_not_wait_has_no_expected_start() -> None:
    starts, changed = reader()
    starts.update({KEY: NOW + timedelta(hours=4)})
    starts.update({KEY: NOW - timedelta(minutes=1)})
    assert starts.expected(KEY) is None
    starts.update({KEY: NOW + timedelta(hours=4)})
    starts.update({})
    assert starts.expected(KEY) is None
    assert changed == [KEY, KEY, KEY]


@pytest.mark.parametrize(
    ("hours", "minutes"), [(0.5, 5), (3, 15), (12, 60), (50, 360)], ids=["soon", "hours", "day", "days"]
)
def test_the_further_away_a_start_is_the_coarser_it_is_rounded(hours: float, minutes: int) -> None:
    start = NOW + timedelta(hours=hours, seconds=1)
    found = rounded(start, NOW)
    assert start <= found < start + timedelta(minutes=minutes)
    assert found.timestamp() % (60 * minutes) == 0
