"""The routes that show the present while PostgreSQL is stopped and answers nothing."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from tests.store.processes import frozen

from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Store, open_store

MAX_SECONDS = 3.0
NAMES = {"{uid}": "job", "{name}": "half"}
NOT_LIVE = {
    "/api/workloads/{uid}/metrics",  # history is in the database
    "/api/workloads/{uid}/trainingPerformance",
    "/api/nodes/{name}/metrics",
    "/api/events",  # does not end
    "/readyz",  # this app has no lifespan
}


@pytest.fixture
async def store(data: Path) -> AsyncIterator[Store]:
    """A store on a PostgreSQL of its own, which a test may stop."""
    async with open_store(StoreSettings(data=data)) as opened:
        yield opened


async def test_live_routes_answer_from_memory_while_the_database_is_stopped(
    http: httpx.AsyncClient, store: Store, data: Path
) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    live = [path for path, verbs in paths.items() if "get" in verbs and path not in NOT_LIVE]
    assert "/api/clusters/overview" in live
    with frozen(data):
        for path in live:
            for part, name in NAMES.items():
                path = path.replace(part, name)
            started = time.monotonic()
            answer = await http.get(path)
            assert (path, answer.status_code) == (path, 200)
            assert time.monotonic() - started < MAX_SECONDS, path
    assert await store.database.fetchval("SELECT 1") == 1
