import math
import time
from collections.abc import AsyncIterator, Iterator

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from tests.exporters.conftest import opened
from tests.prometheus_fixture import running_prometheus
from tests.victoriametrics_fixture import running_victoriametrics

from gpufleet.errors import InvalidRequest
from gpufleet.model.reading import GpuRef, GpuSeries, Quantity

NOW = math.floor(time.time() / 60) * 60.0
START = NOW - 3600.0
EVERY = 15.0
UID = 'job-"1"'
GIB = 1024.0**3
LOST = 5
"""The number of the temperature that was not sampled."""

GPUS = [GpuRef("node-a", 0), GpuRef("node-a", 1), GpuRef("node-b", 0)]


def utilization(gpu: GpuRef, at: float) -> float:
    return (at / EVERY + 7 * gpu.index + (3 if gpu.node == "node-b" else 0)) % 101


def history() -> str:
    """An hour of dcgm on node-a, and of nvidia-smi (by UUID) on node-b, with training numbers."""
    lines: dict[str, list[str]] = {}

    def add(name: str, labels: str, value: float, at: float) -> None:
        lines.setdefault(name, []).append(f"{name}{{{labels}}} {value} {at}")

    steps = int((NOW + 60 - START) / EVERY)
    for gpu in GPUS:
        for step in range(steps):
            at = START + step * EVERY
            if gpu.node == "node-b":
                add("nvidia_smi_gpu_info", 'uuid="u",index="0",name="X",instance="node-b:9835"', 1, at)
                add(
                    "nvidia_smi_utilization_gpu_ratio",
                    'uuid="u",instance="node-b:9835"',
                    utilization(gpu, at) / 100,
                    at,
                )
                add("nvidia_smi_memory_used_bytes", 'uuid="u",instance="node-b:9835"', GIB, at)
                add("nvidia_smi_memory_total_bytes", 'uuid="u",instance="node-b:9835"', 4 * GIB, at)
                continue
            labels = f'Hostname="node-a",gpu="{gpu.index}"'
            add("DCGM_FI_DEV_GPU_UTIL", f'{labels},pod="p"', utilization(gpu, at), at)
            add("DCGM_FI_DEV_FB_USED", labels, 1024, at)
            add("DCGM_FI_DEV_FB_FREE", labels, 1024, at)
            add("DCGM_FI_DEV_POWER_USAGE", labels, 9223372036854775794 if gpu.index else 300, at)
    for step in range(12):
        if step != LOST:
            add("DCGM_FI_DEV_GPU_TEMP", 'Hostname="node-a",gpu="0"', 40 + step, START + 300 * step - 1)
    for step, loss in enumerate([2.5, 1.5, 0.5]):
        at = START + 600 * step + 0.125
        add("train_loss", f'workload_uid="{UID.replace(chr(34), chr(92) + chr(34))}",rank="0"', loss, at)
    add("gpufleet_training", 'workload_uid="replica.set",pod_uid="p",metric="loss",rank=""', 0.25, START + 60)
    add("gpufleet_training", 'workload_uid="replicaXset",pod_uid="q",metric="loss",rank=""', 9.0, START + 60)
    return (
        "".join(f"# TYPE {name} gauge\n" + "\n".join(rows) + "\n" for name, rows in lines.items()) + "# EOF\n"
    )


@pytest.fixture(scope="session", params=["Prometheus", "VictoriaMetrics"])
def past(request: pytest.FixtureRequest) -> Iterator[str]:
    known = {
        "Prometheus": lambda: running_prometheus("global: {}\n", history()),
        "VictoriaMetrics": lambda: running_victoriametrics(openmetrics=history()),
    }
    with known[request.param]() as url:
        yield url


def points(series: GpuSeries) -> dict[float, float]:
    return {
        at: round(value, 6) for at, value in zip(series.times.tolist(), series.values.tolist(), strict=True)
    }


async def test_a_range_returns_the_samples_of_several_exporters(past: str) -> None:
    async with opened(past) as source:
        await source.refresh()
        found = await source.series(Quantity.UTILIZATION, GPUS, START, NOW, 60.0)
        assert [series.gpu for series in found] == GPUS
        for series in found:
            expected = {at: round(utilization(series.gpu, at), 6) for at in np.arange(START, NOW + 1, 60.0)}
            assert points(series) == expected


@pytest.fixture
async def aligned(past: str) -> AsyncIterator[str]:
    """The same behind a frontend that aligns ranges to their step, as Thanos does."""

    async def answer(request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        for name in {"start", "end"} & form.keys():
            form[name] = str(math.floor(float(form[name]) / float(form["step"])) * float(form["step"]))
        async with (
            aiohttp.ClientSession() as session,
            session.request(request.method, past + request.path_qs, data=form or None) as reply,
        ):
            return web.Response(body=await reply.read(), status=reply.status)

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("front", ["past", "aligned"])
async def test_a_range_has_the_requested_times_even_if_the_step_does_not_divide_them(
    past: str, aligned: str, front: str
) -> None:
    first = START + (3.5 - START) % 7  # half a step after a multiple of it
    times = np.arange(first, START + 1800, 7.0).tolist()
    async with opened(past if front == "past" else aligned) as source:
        for _ in range(2):  # the second time the alignment is known
            found = await source.series(Quantity.UTILIZATION, GPUS, times[0], times[-1], 7.0)
            assert [series.gpu for series in found] == GPUS
            for series in found:
                expected = {at: round(utilization(series.gpu, at // EVERY * EVERY), 6) for at in times}
                assert points(series) == expected
            times.pop()


@pytest.mark.parametrize("step", [300, 900])
async def test_no_sample_is_valid_for_longer_than_five_minutes(past: str, step: int) -> None:
    async with opened(past) as source:
        found = await source.series(Quantity.TEMPERATURE, GPUS, START + 600, START + 3000, float(step))
        expected = {START + at: 40 + at / 300 for at in range(600, 3001, step) if at != 300 * LOST}
        assert [(series.gpu, points(series)) for series in found] == [(GPUS[0], expected)]


async def test_a_selector_too_long_for_one_query_is_split(past: str) -> None:
    async with opened(past) as source:
        await source.refresh()
        crowd = [GpuRef(f"gpu-worker-{number:04}.rack.example", 0) for number in range(1500)]
        found = await source.series(Quantity.UTILIZATION, [*crowd, *GPUS], START, START + 600, 60.0)
        alone = await source.series(Quantity.UTILIZATION, GPUS, START, START + 600, 60.0)
        assert [series.gpu for series in found] == GPUS
        assert [points(series) for series in found] == [points(series) for series in alone]
        others = [f"00000000-0000-0000-0000-{number:012}" for number in range(498)]
        numbers = await source.training(UID, START, START + 300, [*others, "replica.set"])
        assert [point.value for point in numbers] == [2.5, 0.25]


async def test_a_range_has_only_the_requested_gpus(past: str) -> None:
    async with opened(past) as source:
        found = await source.series(Quantity.UTILIZATION, [GpuRef("node-a", 1)], START, NOW, 300.0)
        assert [series.gpu for series in found] == [GpuRef("node-a", 1)]
        nothing = await source.series(Quantity.UTILIZATION, [GpuRef('x"} or up{a="', 1)], START, NOW, 300.0)
        assert nothing == []


async def test_missing_quantities_are_derived_and_invalid_values_dropped(past: str) -> None:
    async with opened(past) as source:
        memory = await source.series(Quantity.MEMORY_UTILIZATION, GPUS, START, START + 600, 60.0)
        assert {series.gpu: set(points(series).values()) for series in memory} == {
            GPUS[0]: {50.0},
            GPUS[1]: {50.0},
            GPUS[2]: {25.0},
        }
        power = await source.series(Quantity.POWER, GPUS, START, START + 600, 60.0)
        assert {series.gpu: set(points(series).values()) for series in power} == {GPUS[0]: {300.0}}


async def test_the_same_range_is_queried_once(past: str) -> None:
    async with opened(past) as source:
        first = await source.series(Quantity.UTILIZATION, GPUS, START, NOW - 1200, 60.0)
        cached = source._ranges.bytes
        assert cached > 0
        again = await source.series(Quantity.UTILIZATION, GPUS, START, NOW - 1200, 60.0)
        assert source._ranges.bytes == cached
        assert [points(series) for series in again] == [points(series) for series in first]


async def test_a_too_large_range_is_refused(past: str) -> None:
    async with opened(past) as source:
        with pytest.raises(InvalidRequest, match="at most 11000"):
            await source.series(Quantity.POWER, GPUS, 0, 11_000, 1)
        with pytest.raises(InvalidRequest, match="larger step"):
            await source.series(Quantity.POWER, [GpuRef("n", i) for i in range(2000)], 0, 10_999, 1)


async def test_samples_of_all_gpus_come_in_blocks_that_end_before_the_end(past: str) -> None:
    async with opened(past) as source:
        blocks = [block async for block in source.samples(Quantity.UTILIZATION, START, START + 600, 60.0)]
        times = np.concatenate([block.times for block in blocks])
        np.testing.assert_array_equal(times, START + 60.0 * np.arange(10))
        for block in blocks:
            assert list(block.gpus) == GPUS
            for gpu, row in zip(block.gpus, block.values, strict=True):
                np.testing.assert_allclose(row, [utilization(gpu, at) for at in block.times])


async def test_training_numbers_of_a_controller_belong_to_the_workload(past: str) -> None:
    async with opened(past) as source:
        found = await source.training(UID, START, START + 300, ["replica.set", "another", ""])
        assert [(point.metric, point.value, point.rank) for point in found] == [
            ("train_loss", 2.5, 0),
            ("loss", 0.25, None),
        ]
        assert await source.training("", START, NOW) == []


async def test_training_numbers_come_with_their_own_times(past: str) -> None:
    async with opened(past) as source:
        found = await source.training(UID, START, NOW)
        assert [(point.metric, point.value, point.rank) for point in found] == [
            ("train_loss", 2.5, 0),
            ("train_loss", 1.5, 0),
            ("train_loss", 0.5, 0),
        ]
        assert found[0].time == START + 0.125
        assert await source.training(UID, START + 1, START + 599) == []
        assert await source.training('"} or {a!="', START, NOW) == []
        with pytest.raises(InvalidRequest):
            await source.training(UID, NOW, START)


async def test_the_extremes_of_a_step_are_those_of_its_readings(past: str) -> None:
    async with opened(past) as source:
        await source.refresh()
        (block,) = [each async for each in source.extremes(Quantity.UTILIZATION, START, NOW, 300.0)]
    assert set(block.gpus) == set(GPUS)
    for gpu, lowest, highest in zip(block.gpus, block.lowest, block.highest, strict=True):
        for at, low, high in zip(block.times.tolist(), lowest.tolist(), highest.tolist(), strict=True):
            read = [utilization(gpu, at + second) for second in range(0, 300, int(EVERY))]
            assert (round(low, 6), round(high, 6)) == (min(read), max(read))
