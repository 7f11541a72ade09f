"""Injected faults, by a proxy between the source and a real Prometheus."""

import asyncio
import gzip
import json
import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from structlog.testing import capture_logs
from tests.exporters.conftest import opened, until
from tests.waiting import wait_until

from gpufleet.errors import MetricsUnavailable, SettingsError
from gpufleet.exporters.prometheus.client import PrometheusClient, _decompressed
from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.exporters.source_health import SourceHealthTracker
from gpufleet.model.reading import GpuRef, Quantity, Readings
from gpufleet.runtime.settings import MetricsSettings

GPU = GpuRef("dcgm-1", 0)


class Proxy:
    """Forwards queries, or spoils the responses to those that contain `where`."""

    def __init__(self, upstream: str) -> None:
        self.upstream, self.fault, self.where = upstream, "", ""
        self.url = ""
        self.extra: dict[str, object] = {}
        self.headers: list[dict[str, str]] = []
        self.requests: Counter[str] = Counter()
        """Requests per fault."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        form = dict(await request.post())
        self.headers.append(dict(request.headers))
        query = str(form.get("query", ""))
        fault = self.fault if self.where in query else ""
        self.requests[fault] += 1
        if fault == "slow":
            await asyncio.sleep(1.5)
        if fault == "500":
            return web.Response(status=500, text="out of memory\n")
        if fault == "garbage":
            return web.Response(body=b"\x00\xffnot json at all")
        if fault == "endless":
            return web.Response(body=b'{"status":' + b" " * 200_000)
        if fault == "bomb":
            packed = gzip.compress(b'{"status":' + b" " * 5_000_000)
            return web.Response(body=packed, headers={"Content-Encoding": "gzip"})
        if fault == "unknown encoding":
            return web.Response(body=b"?", headers={"Content-Encoding": "br"})
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, self.upstream + request.path_qs, data=form or None) as reply,
        ):
            body = await reply.read()
        if fault == "nan":
            body = b'{"status":"success","data":{"resultType":"vector","result":[]}}'
        if fault == "renamed":
            body = body.replace(b"DCGM_FI_PROF_DRAM_ACTIVE", b"DCGM_FI_OTHER")
        if fault in ("partial", "remark"):
            body = _with_extra(json.loads(body), self.extra, "dcgm-1" if fault == "partial" else "")
        if fault == "truncated":
            packed = gzip.compress(body)
            return web.Response(body=packed[: len(packed) // 2], headers={"Content-Encoding": "gzip"})
        return web.Response(body=body, status=reply.status)


def _with_extra(response: dict[str, Any], extra: dict[str, object], lost: str) -> bytes:
    """Return a response with `extra` fields that lacks the series of the node `lost`."""
    if lost and isinstance(response["data"], list):
        response["data"] = [name for name in response["data"] if not name.startswith("DCGM_FI_DEV")]
    elif lost:
        found = response["data"]["result"]
        response["data"]["result"] = [series for series in found if lost not in series["metric"].values()]
    return json.dumps({**response, **extra}, separators=(",", ":")).encode()


@pytest.fixture
async def proxy(everything: str) -> AsyncIterator[Proxy]:
    made = Proxy(everything)
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


def complete(readings: Readings) -> bool:
    return len(readings) >= 9 and not readings.errors


@pytest.mark.parametrize(
    "fault", ["slow", "500", "garbage", "truncated", "endless", "bomb", "unknown encoding"]
)
async def test_a_source_in_trouble_makes_readings_older_and_health_degraded(
    proxy: Proxy, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(proxy.url, max_answer_bytes=100_000) as source:
        before = await until(source, complete)
        assert source.health().healthy
        if fault == "slow":  # only now: the first queries may take long
            monkeypatch.setattr(source._client._session, "_timeout", aiohttp.ClientTimeout(total=0.2))
        proxy.fault = fault
        after = await source.refresh()
        assert after.gpus == before.gpus
        assert after.times[Quantity.UTILIZATION].tolist() == pytest.approx(
            before.times[Quantity.UTILIZATION].tolist(), nan_ok=True
        )
        assert set(after.errors) == {"names", "gpus"}
        health = source.health()
        assert not health.healthy
        assert health.last_error
        assert health.metrics["utilization"].last_success is not None
        with pytest.raises(MetricsUnavailable):
            await source.series(Quantity.POWER, [GPU], 0, 60, 60)
        assert (await source.processes()).errors["processes"]
        assert await source.storage() is None
        proxy.fault = ""
        monkeypatch.undo()
        healed = await until(source, complete)
        assert np.nanmax(healed.times[Quantity.UTILIZATION]) >= np.nanmax(before.times[Quantity.UTILIZATION])


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("truncated", "is truncated"),
        ("endless", "exceeds 100000 bytes"),
        ("bomb", "exceeds 100000 bytes"),
        ("unknown encoding", "responds in br, which was not accepted"),
    ],
)
async def test_a_response_that_can_not_be_used_says_why(proxy: Proxy, fault: str, message: str) -> None:
    proxy.fault = fault
    async with PrometheusClient(MetricsSettings(url=proxy.url), max_answer_bytes=100_000) as client:
        with pytest.raises(MetricsUnavailable, match=message):
            await client.instant("up", 0)


def test_a_gzip_response_may_have_several_members() -> None:
    assert _decompressed(gzip.compress(b"one ") + gzip.compress(b"two"), 100) == b"one two"
    assert len(_decompressed(gzip.compress(b"x" * 60) + gzip.compress(b"x" * 60), 100)) == 101
    with pytest.raises(MetricsUnavailable, match="can't be decompressed"):
        _decompressed(gzip.compress(b"one") + b"garbage", 100)


async def test_one_failed_query_costs_only_its_own_quantity(proxy: Proxy) -> None:
    async with opened(proxy.url, timeout=2.0) as source:
        before = await until(source, complete)
        proxy.fault, proxy.where = "500", "DCGM_FI_DEV_POWER_USAGE"
        scraped = before.time(before.rows[GPU], Quantity.UTILIZATION) or math.inf
        after = await until(
            source,
            lambda readings: (readings.time(readings.rows[GPU], Quantity.UTILIZATION) or 0.0) > scraped,
        )
        assert set(after.errors) == {"power"}
        assert after.errors["power"].startswith("dcgm: ")
        assert after.errors["power"].endswith("answered 500: out of memory")
        row = after.rows[GPU]
        assert after.value(row, Quantity.POWER) == 512.5
        assert after.time(row, Quantity.POWER) == before.time(before.rows[GPU], Quantity.POWER)
        older, newer = after.time(row, Quantity.POWER), after.time(row, Quantity.UTILIZATION)
        assert older is not None
        assert newer is not None
        assert older < newer
        assert source.health().metrics["power"].error
        assert not source.health().metrics["utilization"].error


async def test_gpus_that_vanish_from_the_responses_vanish_from_the_readings(proxy: Proxy) -> None:
    async with opened(proxy.url) as source:
        await until(source, complete)
        proxy.fault, proxy.where = "nan", "timestamp(DCGM"
        after = await source.refresh()
        assert "dcgm-1" not in {gpu.ref.node for gpu in after.gpus}
        assert "agent-1" in {gpu.ref.node for gpu in after.gpus}
        assert not after.errors


STORE_DOWN: dict[str, object] = {
    "warnings": ["rpc error: code = Unavailable desc = no answer from 10.0.0.7:10901"]
}


def all_gpus(readings: Readings) -> bool:
    return len(readings) == 10 and not readings.errors


async def test_what_a_partial_response_lacks_stays_and_is_reported(proxy: Proxy) -> None:
    async with opened(proxy.url) as source:
        before = await until(source, all_gpus)
        row = before.rows[GPU]
        other = before.rows[GpuRef("agent-1", 0)]
        proxy.fault, proxy.extra = "partial", STORE_DOWN
        older = before.sampled_at(other) or math.inf
        after = await until(source, lambda readings: (readings.sampled_at(other) or 0.0) > older)
        assert after.gpus == before.gpus
        assert after.holders == before.holders
        assert {row: {fault.kind for fault in faults} for row, faults in after.faults.items()} == {
            row: {fault.kind for fault in faults} for row, faults in before.faults.items()
        }
        assert after.value(row, Quantity.POWER) == before.value(row, Quantity.POWER) == 512.5
        assert after.time(row, Quantity.POWER) == before.time(row, Quantity.POWER)
        assert set(after.errors) == {"partial"}
        assert "partial response" in after.errors["partial"]
        assert not source.health().healthy
        assert "partial response" in source.health().last_error
        assert "partial" in (await source.processes()).errors
        proxy.fault = ""
        await until(source, lambda readings: complete(readings) and source.health().healthy)


def test_partial_responses_are_logged_when_they_begin_and_end() -> None:
    health = SourceHealthTracker(time.time)
    with capture_logs() as lines:
        for warnings in ([], ["from 10.0.0.7:4711"], ["from 10.0.0.7:4712"], [], []):
            health.partial("readings", warnings)
    assert [(line["event"], line["read"]) for line in lines] == [
        ("responses_partial", "readings"),
        ("responses_complete_again", "readings"),
    ]


async def test_what_partial_responses_lack_is_forgotten_after_an_hour(proxy: Proxy) -> None:
    later = 0.0
    settings = MetricsSettings(url=proxy.url, refresh=3600.0)
    async with PrometheusSource(settings, lambda: time.time() + later, detect=0.01) as source:
        before = await until(source, all_gpus)
        proxy.fault, proxy.extra = "partial", STORE_DOWN
        later = 3000.0
        assert (await source.refresh()).gpus == before.gpus
        later = 3700.0
        assert len(await source.refresh()) == 0


async def test_partial_ranges_are_returned_and_reported_and_soon_queried_again(proxy: Proxy) -> None:
    gpus = [GPU, GpuRef("agent-1", 0)]
    async with opened(proxy.url, refresh=0.2) as source:
        await until(source, all_gpus)
        end = time.time()
        proxy.fault, proxy.extra = "partial", STORE_DOWN
        found = await source.series(Quantity.UTILIZATION, gpus, end - 60, end, 15)
        assert [series.gpu for series in found] == gpus[1:]
        assert not source.health().healthy
        proxy.fault = ""

        async def complete() -> bool:
            found = await source.series(Quantity.UTILIZATION, gpus, end - 60, end, 15)
            return [series.gpu for series in found] == sorted(gpus)

        await wait_until(complete)
        await until(source, lambda _: source.health().healthy)


async def test_a_remark_on_an_expression_is_no_error(proxy: Proxy) -> None:
    async with opened(proxy.url) as source:
        proxy.fault = "remark"
        proxy.extra = {"warnings": ["PromQL warning: a"], "infos": ["PromQL info: might not be a counter"]}
        await until(source, lambda readings: complete(readings) and source.health().healthy)


async def test_no_caller_waits_for_a_source_that_never_answered() -> None:
    async with opened("http://127.0.0.1:9", timeout=1.0) as source:
        readings = await source.latest()
        assert len(readings) == 0
        assert readings.errors
        assert not source.health().healthy
        with pytest.raises(MetricsUnavailable):
            await source.series(Quantity.POWER, [GPU], 0, 60, 60)
        assert await source.rdma() is None


async def test_readings_refresh_by_themselves_and_converge_when_the_source_flaps(proxy: Proxy) -> None:
    settings = MetricsSettings(url=proxy.url, refresh=0.2, timeout=0.5)
    async with PrometheusSource(settings, detect=0.1) as source:
        await until(source, complete)
        for fault in ["500", "", "garbage", "slow", "truncated", ""]:
            proxy.fault = fault
            proxy.requests.clear()
            await wait_until(lambda: proxy.requests[proxy.fault] > 1)
            assert len(await source.latest()) >= 9

        async def converged() -> bool:
            return complete(await source.latest()) and source.health().healthy

        await wait_until(converged)
        assert not math.isnan(float((await source.latest()).values[Quantity.UTILIZATION][0]))


async def test_tokens_passwords_and_headers_are_sent_and_files_read_again(
    proxy: Proxy, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    async with opened(proxy.url, bearer_token_file=token, headers=("X-Scope-OrgID: team",)) as source:
        await source.refresh()
        assert proxy.headers[-1]["Authorization"] == "Bearer first"
        assert proxy.headers[-1]["X-Scope-OrgID"] == "team"
        assert "gzip" in proxy.headers[-1]["Accept-Encoding"]
        token.write_text("second")
        await source.refresh()
        assert proxy.headers[-1]["Authorization"] == "Bearer second"
        token.unlink()
        readings = await source.refresh()
        assert "second" not in str(readings.errors)
        assert readings.errors["names"].startswith(f"can't read {token}")
    (tmp_path / "password").write_text("s3cret")
    async with opened(proxy.url, username="me", password_file=tmp_path / "password") as source:
        await source.refresh()
        assert proxy.headers[-1]["Authorization"] == "Basic bWU6czNjcmV0"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (MetricsSettings(url="prometheus:9090"), "must begin with http"),
        (MetricsSettings(url="http://p", headers=("nonsense",)), "Name: value"),
        (MetricsSettings(url="http://p", ca_file=Path("/not/there")), "holds no certificates"),
    ],
)
async def test_invalid_settings_are_refused_immediately(settings: MetricsSettings, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        PrometheusSource(settings)


async def test_health_recovers_from_whatever_broke_a_refresh(everything: str) -> None:
    broken = False

    def clock() -> float:
        if broken:
            raise OSError("no time to be had")
        return time.time()

    async def becomes(healthy: bool) -> None:
        await wait_until(lambda: source.health().healthy is healthy)

    settings = MetricsSettings(url=everything, refresh=0.1, timeout=5.0)
    async with PrometheusSource(settings, clock) as source:
        await becomes(True)
        broken = True
        await becomes(False)
        assert "no time to be had" in source.health().last_error
        broken = False
        await becomes(True)


async def test_a_failed_query_on_demand_is_retried_without_another_caller(proxy: Proxy) -> None:
    async with opened(proxy.url, refresh=0.5) as source:
        await until(source, complete)
        proxy.fault, proxy.where = "500", "process_gpu_memory_bytes"
        assert (await source.processes()).errors
        assert not source.health().healthy
        proxy.fault = ""
        await until(source, lambda _: source.health().healthy)


async def test_the_error_of_a_metric_disappears_with_the_metric(proxy: Proxy) -> None:
    async with opened(proxy.url) as source:
        await until(source, lambda readings: complete(readings) and Quantity.DRAM_ACTIVITY in readings.values)
        proxy.fault, proxy.where = "500", "DRAM_ACTIVE"
        assert "dram_activity" in (await source.refresh()).errors
        proxy.fault, proxy.where = "renamed", ""
        await until(source, lambda _: source.health().healthy)
        assert Quantity.DRAM_ACTIVITY not in (await source.latest()).values
