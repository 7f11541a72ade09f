"""Measure the roll-up and storage of one hour of 100,000 GPUs: 12 samples each, 10,000 workloads, 5 label keys."""

import asyncio
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.result import Result
from gpufleet.accounting.rollup import RollupPlan, roll_up
from gpufleet.accounting.samples import Samples
from gpufleet.model.hours import Hour
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.runtime.settings import StoreSettings
from gpufleet.runtime.settings.prices import prices_by_model
from gpufleet.store import open_store

NODES, GPUS, WORKLOADS, KEYS = 12_500, 8, 10_000, 5
HOUR = 1_700_002_800


def measure() -> Iterator[Result]:
    periods, capacities, samples = _hour()
    plan = RollupPlan(
        label_keys=tuple(f"key-{k}" for k in range(KEYS)), prices=prices_by_model({"H200": 3.5})
    )
    started, used = time.perf_counter(), time.process_time()
    hour = roll_up(HOUR, periods, capacities, samples, plan)
    seconds, cpu = time.perf_counter() - started, time.process_time() - used
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as folder:
        stored, again = asyncio.run(_store(Path(folder), hour))
    note = f"{seconds:.1f} s to roll up ({cpu:.1f} s of CPU), {stored:.1f} s to store"
    yield Result("an hour of 100,000 GPUs rolled up and stored", seconds + stored, "s", at_most=10, note=note)
    yield Result("the same hour stored again", again, "s")
    yield Result("rows created", len(hour.workloads) + len(hour.labels) + len(hour.namespaces) + 1, "rows")
    yield Result(
        "peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB", at_most=1024
    )


async def _store(folder: Path, hour: Hour) -> tuple[float, float]:
    taken = []
    async with open_store(StoreSettings(data=folder / "data")) as store:
        await store.accounted.open("prod", float(HOUR))
        for _ in range(2):
            started = time.perf_counter()
            await store.hours.save("prod", HOUR // 3600, hour, measured=True, status=lambda _row: "Running")
            taken.append(time.perf_counter() - started)
    return taken[0], taken[1]


def _hour() -> tuple[list[AllocationPeriod], list[CapacityPeriod], Samples]:
    rng = np.random.default_rng(7)
    periods = []
    for node in range(NODES):
        for half in range(2):
            workload = int(rng.integers(WORKLOADS))
            periods.append(_period(node, half, workload, rng))
    capacities = [
        CapacityPeriod(node=f"n{node}", gpus=GPUS, model="H200", start=0.0) for node in range(NODES)
    ]
    gpus = {(f"n{n}", g): n * GPUS + g for n in range(NODES) for g in range(GPUS)}
    times = np.array([(HOUR + i * 300) * 1000 for i in range(12)], dtype=np.int64)
    shape = (NODES * GPUS, 12)
    used = rng.uniform(0, 141e9, shape)
    total = np.full(shape, 141e9)
    return periods, capacities, Samples(gpus, times, 300_000, rng.uniform(0, 100, shape), used, total)


def _period(node: int, half: int, workload: int, rng: np.random.Generator) -> AllocationPeriod:
    return AllocationPeriod(
        pod_uid=f"p{node}-{half}",
        pod=f"p{node}-{half}",
        namespace=f"ns-{workload % 200}",
        node=f"n{node}",
        workload_uid=f"w{workload}",
        workload_kind="Job",
        workload_name=f"w{workload}",
        source="k8s",
        gpus=4,
        share=1.0,
        model="H200",
        held=tuple(range(half * 4, half * 4 + 4)),
        labels={f"key-{k}": f"value-{workload % (10 * (k + 1))}" for k in range(KEYS)},
        annotations={},
        start=HOUR - float(rng.uniform(-3000, 3000)),
    )
