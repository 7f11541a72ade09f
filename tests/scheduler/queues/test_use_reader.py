"""Reading the use of namespaces from the server."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gpufleet.kubernetes import Timing
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.queues.gpu_queues import GpuQueues
from gpufleet.scheduler.queues.use_reader import PATH, UseReader
from gpufleet.scheduler.state import Ledger

AMOUNT = {"gpu_hours": 2.0, "cost": 7.0}
USE = {
    "cluster_name": "prod",
    "until": "2026-10-05T13:00:00Z",
    "day_start": "2026-10-05T00:00:00Z",
    "week_start": "2026-10-05T00:00:00Z",
    "month_start": "2026-10-01T00:00:00Z",
    "namespaces": [
        {"namespace": "ml", "decayed_gpu_hours": 1.5, "day": AMOUNT, "week": AMOUNT, "month": AMOUNT}
    ],
    "prices": {"": 3.5},
}


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async def use(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != "Bearer secret":
            return web.Response(status=401)
        assert request.query == {"half_life": "3600", "cluster": "prod"}
        return web.json_response({"data": USE})

    app = web.Application()
    app.router.add_get(PATH, use)
    server = TestServer(app)
    async with server:
        yield server


def reader(server: TestServer, token: Path) -> tuple[UseReader, GpuQueues]:
    settings = SchedulerSettings(
        server_url=str(server.make_url("/")),
        server_token_file=token,
        server_cluster="prod",
        share_half_life=3600,
    )
    queues = GpuQueues(Ledger(), Timing(), 3600)
    return UseReader(queues, settings, Timing()), queues


async def test_the_last_reading_stays_while_the_server_is_down(server: TestServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n")
    use_reader, queues = reader(server, token)
    async with aiohttp.ClientSession() as session:
        await use_reader.read(session)
        assert use_reader.problem == ""
        assert queues.reading.decayed == {"ml": 5400.0}
        assert queues.reading.until == datetime(2026, 10, 5, 13, tzinfo=UTC).timestamp()
        assert queues.reading.periods["Month"]["ml"].cost == 7.0
        known = queues.reading
        await server.close()
        await use_reader.read(session)
    assert "the server can't be reached" in use_reader.problem
    assert queues.reading is known


async def test_a_refusal_is_a_problem_and_no_reading(server: TestServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("wrong")
    use_reader, queues = reader(server, token)
    async with aiohttp.ClientSession() as session:
        await use_reader.read(session)
        token.unlink()
        assert use_reader.problem == "the server answers 401"
        await use_reader.read(session)
    assert "server_token_file can't be read" in use_reader.problem
    assert queues.reading.read_at is None
