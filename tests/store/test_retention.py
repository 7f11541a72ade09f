"""Clusters with different retention in one database."""

import asyncio

import numpy as np
from tests.accounting import histories
from tests.accounting.histories import STEP, Prometheus, Server, Time, World, pod

from gpufleet.model.node import FleetNode
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings, TrainingPoint
from gpufleet.runtime.settings import AccountingSettings
from gpufleet.store import Store
from gpufleet.store.partitions import MONTHLY
from gpufleet.store.prune import RetentionSettings, find_expired, prune, publish_retention

T0 = 1_800_000_000.0
HOUR, DAY = 3600.0, 86_400.0
POWER = Quantity.POWER
AGES = 1e12
LONG = AccountingSettings(
    snapshot_retention=AGES,
    workload_retention=AGES,
    hour_retention=AGES,
    holding_retention=AGES,
    ended_retention=AGES,
)
BRIEF = AccountingSettings()
NOW = histories.HOUR + 2000 * DAY


async def _move(store: Store, now: float) -> None:
    """Move the database's clock; everything is stored until then."""
    store.database.clock = f"to_timestamp({now})"
    await store.database.execute("UPDATE accounted_cluster SET seen_at = $1", now)


async def _compact(store: Store, cluster: str, now: float, keep: float) -> None:
    await _move(store, now)
    await store.readings.compact_and_prune(cluster, now, keep)


async def _measure(store: Store, cluster: str, at: float) -> None:
    column = np.array([300.0])
    gpus = (GpuIdentity(GpuRef("a", 0)),)
    await store.readings.append(cluster, Readings(at, gpus, {POWER: column}, {POWER: column * 0 + at}))
    await store.readings.put_state(cluster, "processes", at, b"{}")


async def _stored(store: Store, cluster: str) -> list[float]:
    found = await store.readings.samples(cluster, POWER, T0 - 1, T0 + 100 * DAY)
    return sorted(float(time) for series in found for time in series.times)


async def test_readings_survive_the_shorter_retention_of_another_cluster(store: Store) -> None:
    keep = {"brief": HOUR, "long": 10 * DAY}
    for cluster in keep:
        await _measure(store, cluster, T0)
        await _compact(store, cluster, T0 + HOUR, keep[cluster])
        await _measure(store, cluster, T0 + 2 * DAY)
    for now in (T0 + 2 * DAY, T0 + 2 * DAY + HOUR):
        await asyncio.gather(*(_compact(store, cluster, now, keep[cluster]) for cluster in keep))
    assert await _stored(store, "long") == [T0, T0 + 2 * DAY]
    assert await _stored(store, "brief") == [T0 + 2 * DAY]
    await _compact(store, "long", T0 + 11 * DAY, keep["long"])
    assert await _stored(store, "long") == [T0 + 2 * DAY]
    assert await _stored(store, "brief") == []  # its own server is down: another one prunes for it
    parts = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'reading_chunk'::regclass"
    assert await store.database.fetchval(parts) == 1


async def test_states_and_layouts_follow_the_retention_of_their_cluster(store: Store) -> None:
    for cluster in ("brief", "long"):
        await _measure(store, cluster, T0)
    await _compact(store, "long", T0 + 1, 10 * DAY)
    await _compact(store, "brief", T0 + DAY, HOUR)
    assert await store.readings.state("long", "processes") is not None
    assert await store.readings.latest("long") is not None
    assert await store.readings.state("brief", "processes") is None
    assert await store.readings.latest("brief") is None


async def test_the_retention_of_a_removed_cluster_expires(store: Store) -> None:
    await _measure(store, "gone", T0)
    await _compact(store, "gone", T0 + HOUR, 10 * DAY)
    for day in (1, 12):
        await _measure(store, "here", T0 + day * DAY)
        await _compact(store, "here", T0 + day * DAY + HOUR, 2 * DAY)
    assert await _stored(store, "gone") == []
    assert await store.database.fetchval("SELECT array_agg(cluster) FROM retention") == ["here"]


async def _account(store: Store, cluster: str) -> None:
    """Roll up an hour with a pod that has ended since."""
    start = histories.HOUR
    world = World({"a": FleetNode(name="a", gpu_count=4, gpu_model="H200", created=start - 9000.0)})
    world.pods["p"] = pod("p", "a", 2, start + 0.0, held=(0, 1), labels={"team": "nlp"})
    time = Time(start + 1.0)
    metrics = Prometheus({("a", 0, start + m * STEP): 50.0 for m in range(12)})
    server = Server(world, store, metrics, time, cluster=cluster)
    await server.round()
    time.now = start + 3650.0
    server.fleet.drop_pod("p")
    await server.round()
    await store.ended.save(cluster, server.fleet.drain_ended())


async def _rows(store: Store, cluster: str) -> dict[str, int]:
    """Count the rows of a cluster in each pruned table, except nodes, which still exist."""
    cluster_id = await store.accounted.id_of(cluster)
    found = {}
    for table in (*MONTHLY, "accounted_hour", "holding", "ended_workload"):
        key = cluster if table == "ended_workload" else cluster_id
        found[table] = await store.database.fetchval(f"SELECT count(*) FROM {table} WHERE cluster = $1", key)
    return found


async def test_accounting_survives_the_shorter_retention_of_another_cluster(store: Store) -> None:
    for cluster in ("brief", "long"):
        await _account(store, cluster)
    before = await _rows(store, "long")
    assert all(before.values())
    await publish_retention(
        store, RetentionSettings(BRIEF, {"long": LONG}), NOW
    )  # by a server that does not prune
    retention = RetentionSettings(BRIEF, {"brief": BRIEF})
    await _move(store, NOW)
    expected = await find_expired(store, retention)
    assert {expired.cluster for expired in expected} == {"brief"}
    assert await prune(store, retention) == expected
    assert await _rows(store, "long") == before
    assert not any((await _rows(store, "brief")).values())
    assert await find_expired(store, retention) == []


async def test_partitions_that_expired_for_all_clusters_are_dropped(store: Store) -> None:
    for cluster in ("one", "two"):
        await _account(store, cluster)
    await publish_retention(store, RetentionSettings(BRIEF, {"one": LONG}), NOW)
    await _move(store, NOW)
    await prune(
        store, RetentionSettings(BRIEF, {"one": BRIEF})
    )  # "one" has a shorter retention now; "two" never published one
    for cluster in ("one", "two"):
        assert not any((await _rows(store, cluster)).values())
    assert await store.database.fetchval("SELECT to_regclass('snapshot_2021_05')") is None


async def _losses(store: Store, uid: str) -> list[float]:
    return [point.time for point in await store.training.read(uid, 0.0, 1e11)]


async def _train(store: Store, cluster: str, uid: str, *times: float) -> None:
    await store.training.append(cluster, uid, [TrainingPoint("loss", 1.0, time) for time in times])


async def _prune_training(store: Store, keep: dict[str, float], now: float) -> None:
    await publish_retention(store, RetentionSettings(BRIEF, {}, keep), now)
    for cluster, rows, _, _ in await store.training.expired(keep, now):
        await store.training.prune(keep, now, cluster, rows)


async def test_training_points_follow_the_retention_of_their_cluster(store: Store) -> None:
    for cluster in ("brief", "long", "silent"):
        await _train(store, cluster, f"job of {cluster}", T0, T0 + 4 * DAY)
    await _prune_training(store, {"long": 10 * DAY}, T0 + 1)
    await _prune_training(store, {"brief": DAY}, T0 + 4.5 * DAY)
    assert await _losses(store, "job of brief") == [T0 + 4 * DAY]
    assert await _losses(store, "job of long") == await _losses(store, "job of silent") == [T0, T0 + 4 * DAY]
    await _prune_training(store, {"brief": DAY}, T0 + 20 * DAY)
    assert await store.database.fetchval("SELECT count(*) FROM training_series") == 0


async def test_late_training_points_are_pruned_too(store: Store) -> None:
    await _train(store, "here", "job", T0)
    await _prune_training(store, {"here": DAY}, T0 + 1)
    await _train(store, "here", "job", T0 - 5 * DAY, T0 - HOUR)
    await _prune_training(store, {"here": DAY}, T0 + 1)
    assert await _losses(store, "job") == [T0 - HOUR, T0]
    # like rows of an older version that did not store the cluster
    await store.database.execute("UPDATE training_series SET cluster = '', oldest = '-infinity'")
    await _prune_training(store, {"here": DAY}, T0 + DAY - 1)
    assert await _losses(store, "job") == [T0]
    await _prune_training(store, {"here": DAY}, T0 + DAY + 1)
    assert await _losses(store, "job") == []
    assert await store.database.fetchval("SELECT count(*) FROM training_series") == 0


async def test_a_job_that_reports_during_pruning_keeps_its_new_points(store: Store) -> None:
    async def report(uid: str, later: int) -> None:
        await _train(store, "here", uid, T0 + 10 * DAY + later)

    async def prune_old() -> None:
        await _prune_training(store, {"here": DAY}, T0 + 10 * DAY)

    for number in range(20):
        uid = f"job {number}"
        await _train(store, "here", uid, T0)
        await asyncio.gather(*(report(uid, later) for later in range(3)), prune_old())
        assert {T0 + 10 * DAY + later for later in range(3)} <= set(await _losses(store, uid))
    for days in (30, 31):
        await _prune_training(store, {"here": DAY}, T0 + days * DAY)
    assert await store.database.fetchval("SELECT count(*) FROM training_series") == 0
