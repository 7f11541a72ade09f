"""One hour of 100,000 GPUs, 12 samples each, 10,000 workloads, 5 label keys, rolled up."""

import resource
import time
from collections.abc import Iterator

import numpy as np

from bench.result import Result
from gpufleet.accounting.rollup import Plan, roll_up
from gpufleet.accounting.samples import Samples
from gpufleet.model.holding import Capacity, Holding

NODES, GPUS, WORKLOADS, KEYS = 12_500, 8, 10_000, 5
HOUR = 1_700_002_800


def measure() -> Iterator[Result]:
    holdings, capacities, samples = _hour()
    plan = Plan(label_keys=tuple(f"key-{k}" for k in range(KEYS)), prices={"H200": 3.5})
    started = time.perf_counter()
    hour = roll_up(HOUR, holdings, capacities, samples, plan)
    seconds = time.perf_counter() - started
    yield Result("roll-up of an hour of 100,000 GPUs", seconds, "s", at_most=10)
    yield Result("rows made", len(hour.workloads) + len(hour.labels) + len(hour.namespaces) + 1, "rows")
    yield Result(
        "peak memory", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MiB", at_most=1024
    )


def _hour() -> tuple[list[Holding], list[Capacity], Samples]:
    chance = np.random.default_rng(7)
    holdings = []
    for node in range(NODES):
        for half in range(2):
            workload = int(chance.integers(WORKLOADS))
            holdings.append(_holding(node, half, workload, chance))
    capacities = [Capacity(node=f"n{node}", gpus=GPUS, model="H200", start=0.0) for node in range(NODES)]
    gpus = {(f"n{n}", g): n * GPUS + g for n in range(NODES) for g in range(GPUS)}
    times = np.array([(HOUR + i * 300) * 1000 for i in range(12)], dtype=np.int64)
    shape = (NODES * GPUS, 12)
    used = chance.uniform(0, 141e9, shape)
    total = np.full(shape, 141e9)
    return holdings, capacities, Samples(gpus, times, 300_000, chance.uniform(0, 100, shape), used, total)


def _holding(node: int, half: int, workload: int, chance: np.random.Generator) -> Holding:
    return Holding(
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
        start=HOUR - float(chance.uniform(-3000, 3000)),
    )
