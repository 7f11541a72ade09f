"""The status of claims, from the ledger, and when it is written."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.scheduler.stage import Stage, open_stage
from tests.waiting import wait_until

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.scheduler import claim_status
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.claim_status import MAX_DELAY, ClaimStatuses, status_of
from gpufleet.scheduler.queues.start_reader import PATH
from gpufleet.scheduler.state import Ledger
from kubelite import KubeLite


def claim(name: str = "c", **devices: object) -> GpuClaim:
    body = {"metadata": {"name": name, "namespace": "ml", "uid": name}, "spec": {"devices": devices}}
    return msgspec.convert(body, GpuClaim)


class Cluster:
    """Three changed claims, pods that are being bound or not, and the statuses that were written."""

    def __init__(self) -> None:
        self.binding, self.asked, self.now = True, 0, 0.0
        self.written: list[str] = []
        self.most_at_once = self.at_once = 0

    def is_binding(self) -> bool:
        self.asked += 1
        return self.binding

    async def write_status(self, namespace: str, name: str, status: Mapping[str, Any]) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.written.append(name)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        ledger = Ledger()
        for name in ("one", "two", "three"):
            ledger.put_claim(claim(name, count=1))
        timing = Timing(monotonic=lambda: self.now)
        api = cast(SchedulerApi, self)
        statuses = ClaimStatuses(api, ledger, lambda pod: "", self.is_binding, timing)
        statuses.enqueue_all()
        task = asyncio.ensure_future(statuses.run())
        try:
            yield
        finally:
            task.cancel()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(claim_status, "BATCH_WINDOW", 0.001)
    return Cluster()


def test_a_claim_from_before_the_rules_of_the_crd_is_failed_with_the_reason() -> None:
    status = status_of(Ledger(), lambda pod: "", claim(count=100_000))
    assert status["phase"] == "Failed"
    assert status["message"].startswith("The claim is invalid, no pod can use it: ")
    assert "count" in status["message"]


def test_a_valid_claim_without_pods_is_pending() -> None:
    assert status_of(Ledger(), lambda pod: "", claim(count=1))["phase"] == "Pending"


async def test_statuses_wait_until_no_pods_are_being_bound(cluster: Cluster) -> None:
    async with cluster.writing():
        await wait_until(lambda: cluster.asked > 50)
        assert cluster.written == []
        cluster.binding = False
        await wait_until(lambda: sorted(cluster.written) == ["one", "three", "two"])


async def test_statuses_are_written_one_at_a_time_if_pods_are_bound_without_end(cluster: Cluster) -> None:
    async with cluster.writing():
        await wait_until(lambda: cluster.asked > 0)
        assert cluster.written == []
        cluster.now += MAX_DELAY
        await wait_until(lambda: cluster.written == ["one", "two", "three"])
        assert cluster.most_at_once == 1


class Estimates:
    """A gpufleet server that says when claim `next` is expected to start; `reads` counts how often it was asked."""

    def __init__(self) -> None:
        self.start = datetime.now(UTC) + timedelta(hours=3)
        self.reads = 0

    async def queue(self, request: web.Request) -> web.Response:
        self.reads += 1
        estimate = {"expectedStart": self.start.isoformat()}
        unit = {"namespace": "default", "name": "second", "claims": ["next"], "estimate": estimate}
        return web.json_response({"data": {"data": [unit]}})

    async def is_read_again(self) -> None:
        """Wait until an answer that was given after this call has been used."""
        seen = self.reads
        await wait_until(lambda: self.reads >= seen + 2)


@asynccontextmanager
async def estimating() -> AsyncIterator[tuple[Estimates, str]]:
    estimates, app = Estimates(), web.Application()
    app.router.add_get(PATH, estimates.queue)
    async with TestServer(app) as running:
        yield estimates, str(running.make_url("/"))


async def expected_start(stage: Stage) -> datetime | None:
    return (await stage.read_claim("next")).status.expected_start


async def test_a_waiting_claim_has_a_rounded_expected_start_until_it_is_bound(server: KubeLite) -> None:
    async with (
        estimating() as (estimates, url),
        open_stage(server, server_url=url, server_refresh=0.02) as stage,
    ):
        await stage.node("a", gpus=2)
        await stage.claim("first", 2)
        first = await stage.pod("first", "first")
        await stage.schedule(first)
        await stage.claim("next", 2)
        second = await stage.pod("second", "next")
        assert await stage.schedule(second) == ""
        ledger = stage.scheduler.ledger
        await stage.until(lambda: ledger.claims["default", "next"].status.expected_start)
        found = await expected_start(stage)
        assert found is not None
        assert estimates.start <= found < estimates.start + timedelta(minutes=15)
        assert found.timestamp() % 900 == 0

        written = (await stage.read_claim("next")).metadata.resource_version
        for minutes in (-40, 40, 5):
            estimates.start = found + timedelta(minutes=minutes)
            await estimates.is_read_again()
        await stage.reconciled()
        assert (await stage.read_claim("next")).metadata.resource_version == written

        estimates.start = found + timedelta(hours=9)
        await stage.until(lambda: ledger.claims["default", "next"].status.expected_start != found)
        later = await expected_start(stage)
        assert later is not None
        assert later >= estimates.start
        assert later.timestamp() % 3600 == 0

        await stage.delete(first)
        await stage.until(lambda: not ledger.held_by(first.metadata.uid))
        assert await stage.schedule(second) == "a"
        await stage.until(lambda: ledger.claims["default", "next"].status.phase == "Bound")
        assert await expected_start(stage) is None
