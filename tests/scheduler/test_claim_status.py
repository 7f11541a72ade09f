"""The status of claims, from the ledger, and when it is written."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest
from tests.waiting import wait_until

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.scheduler import claim_status
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.claim_status import MAX_DELAY, ClaimStatuses, status_of
from gpufleet.scheduler.state import Ledger


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
