"""Hours of several clusters at the same time, and of months with dropped partitions."""

import asyncio

import msgspec

from gpufleet.model.hours import (
    GPU_HOUR,
    HOUR_MS,
    ClusterHour,
    Distribution,
    Hour,
    NamespaceHour,
    Usage,
    WorkloadHour,
)
from gpufleet.runtime.settings import AccountingSettings
from gpufleet.store import Store
from gpufleet.store.prune import RetentionSettings, prune

NUMBER = 450_000


def hour_of(kinds: list[str]) -> Hour:
    """Return an hour in which one workload of each kind held a GPU."""
    usage = Usage(allocated=GPU_HOUR, idle=0, utilization=Distribution(), workloads=1, cost=0.0)
    whole = msgspec.structs.replace(usage, allocated=GPU_HOUR * len(kinds))
    workload = WorkloadHour(
        namespace="ml",
        kind="",
        name="train",
        uid="u",
        source="k8s",
        labels={},
        annotations={},
        running=True,
        requested_gpus=1.0,
        mean_replicas=1.0,
        most_replicas=1,
        fewest_replicas=1,
        mean_memory_used=None,
        most_memory_used=None,
        mean_memory_total=None,
        usage=usage,
    )
    return Hour(
        start=NUMBER * 3600,
        cluster=ClusterHour(capacity_gpu_hours=8.0, gpus=8, observed=HOUR_MS, usage=whole),
        namespaces=(NamespaceHour(namespace="ml", usage=whole),),
        labels=(),
        workloads=tuple(msgspec.structs.replace(workload, kind=kind) for kind in kinds),
    )


async def save(store: Store, cluster: str, hour: Hour | None, number: int = NUMBER) -> bool:
    return await store.hours.save(cluster, number, hour, measured=True, status=lambda _: "Running")


async def rows(store: Store) -> int:
    return int(await store.database.fetchval("SELECT count(*) FROM workload_hour"))


async def test_clusters_can_insert_the_same_new_kind_at_the_same_time(
    store: Store,
) -> None:
    clusters = [f"c{number}" for number in range(40)]
    for cluster in clusters:
        await store.accounted.open(cluster, 0.0)
    await save(store, clusters[0], None)

    async def insert(index: int, cluster: str) -> None:
        await asyncio.sleep(index * 0.004)
        # each cluster inserts a new kind and those of the next clusters
        await save(store, cluster, hour_of([f"Kind{index + offset}" for offset in range(4)]))

    await asyncio.gather(*(insert(index, cluster) for index, cluster in enumerate(clusters)))
    assert await rows(store) == 160


async def test_an_hour_of_a_month_whose_workloads_were_dropped_is_stored_again(store: Store) -> None:
    await store.accounted.open("prod", 0.0)
    await save(store, "prod", hour_of(["Job"]))
    await store.database.execute("DROP TABLE workload_hour_2021_05")
    await save(store, "prod", hour_of(["Job", "Pod"]))
    assert await rows(store) == 2


async def sums(store: Store) -> dict[str, float]:
    """Return the GPU-hours of the day by grouping."""
    found = await store.database.fetch(
        "SELECT grouping, sum(allocated) AS allocated FROM usage_day WHERE hour = $1 GROUP BY grouping",
        NUMBER - NUMBER % 24,
    )
    return {row["grouping"]: float(row["allocated"]) / GPU_HOUR for row in found}


async def test_the_sums_of_a_day_do_not_shrink_when_its_hours_are_pruned(store: Store) -> None:
    await store.accounted.open("prod", 0.0)
    for number in range(NUMBER, NUMBER + 3):
        assert await save(store, "prod", hour_of(["Job", "Pod"]), number)
    whole = {"cluster": 6.0, "namespace": 6.0, "workload": 6.0}
    assert await sums(store) == whole
    settings = AccountingSettings(workload_retention=86_400.0)
    later = (NUMBER + 31 * 24) * 3600.0
    store.database.clock = f"to_timestamp({later})"
    await store.accounted.set_stored_until("prod", later)
    await prune(store, RetentionSettings(settings, {}))
    assert await rows(store) == 0
    await store.hours.mark_stale("prod", NUMBER)
    assert not await save(store, "prod", hour_of(["Job"]), NUMBER + 1)  # late data
    assert await sums(store) == whole
    assert not (await store.hours.states("prod", NUMBER))[NUMBER + 1].stale
    for _ in range(2):
        await save(store, "prod", hour_of(["Job"]), NUMBER + 3)  # was missing until now
    assert await sums(store) == {"cluster": 7.0, "namespace": 7.0, "workload": 7.0}
