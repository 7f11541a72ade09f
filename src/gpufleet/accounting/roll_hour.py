"""Roll up one hour of a cluster from the store and the metric source, and store the result.

Nothing of an hour is held in memory between runs, so any server can compute any hour at any time,
and again.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from gpufleet.accounting.hour_readings import SampleGrid
from gpufleet.accounting.rollup import RollupPlan, roll_up
from gpufleet.errors import InvalidRequest, MetricsUnavailable
from gpufleet.fleet.node_names import NodeNames
from gpufleet.model.hours import Hour, WorkloadHour
from gpufleet.model.metric_source import MetricSource
from gpufleet.runtime.logs import get_logger
from gpufleet.store import Store

StatusOf = Callable[[str], str | None]
"""Returns how the workload of a uid ended, or None if that is not known."""

_log = get_logger("accounting")


class RolledHour(NamedTuple):
    """The statistics of an hour; None if there is no data, or if the stored hour was kept."""

    hour: Hour | None
    kept: str = ""
    """Why the stored hour was kept."""


class ComputedHour(NamedTuple):
    """The statistics of an hour; None without a sample and a snapshot."""

    hour: Hour | None
    measured: bool
    """Whether the metric source answered."""
    any_samples: bool


async def roll_hour(
    cluster: str,
    hour: int,
    step: int,
    store: Store,
    metrics: MetricSource,
    plan: RollupPlan,
    status_of: StatusOf,
    known_since: float = 0.0,
) -> RolledHour:
    """Compute hour number `hour` and store it.

    Allocation periods from before `known_since` may have been pruned.
    """
    start = hour * 3600
    rolled, measured, any_samples = await compute_hour(cluster, hour, step, store, metrics, plan)
    lost = ""
    if rolled is None or not any_samples:
        lost = "the readings are gone"
    elif start < known_since:
        lost = "the allocation periods were pruned"
    if lost and await store.hours.has_samples(cluster, hour):
        # The stored hour was computed from more data than is left.
        _log.warning("hour_kept", cluster=cluster, hour=start, reason=lost)
        await store.hours.clear_stale(cluster, hour)
        return RolledHour(None, kept=lost)
    status = await statuses(cluster, hour, rolled, store, status_of)
    if not await store.hours.save(cluster, hour, rolled, measured=measured, status=status):
        return RolledHour(None, kept="the workload hours of its day were pruned")
    return RolledHour(rolled)


async def compute_hour(
    cluster: str,
    hour: int,
    step: int,
    store: Store,
    metrics: MetricSource,
    plan: RollupPlan,
    until: float | None = None,
) -> ComputedHour:
    """Compute hour number `hour`, with `until` only the time before it."""
    start = hour * 3600
    periods = await store.allocation_periods.overlapping(cluster, start, start + 3600)
    capacity = await store.capacity_periods.overlapping(cluster, start, start + 3600)
    observed = await store.observed.overlapping(cluster, start, start + 3600)
    grid = SampleGrid(start, step, NodeNames.of_periods(capacity))
    measured = True
    try:
        await grid.read(metrics, until)
    except (MetricsUnavailable, InvalidRequest) as error:
        measured = False
        _log.warning("hour_without_metric_source", cluster=cluster, hour=start, error=str(error))
    snapshots = await store.snapshots.readings(cluster, hour)
    grid.add_snapshots(snapshots)
    samples = grid.samples()
    if not samples.any and not snapshots:
        return ComputedHour(None, measured, False)
    rolled = await asyncio.to_thread(roll_up, start, periods, capacity, samples, plan, observed, until)
    return ComputedHour(rolled, measured, samples.any)


async def statuses(
    cluster: str, hour: int, rolled: Hour | None, store: Store, status_of: StatusOf
) -> Callable[[WorkloadHour], str]:
    """Return a function that returns the status of each workload of an hour."""
    ended = [row.uid for row in rolled.workloads if not row.running] if rolled else []
    archived = await store.ended.statuses(cluster, ended)
    before = await store.hours.statuses(cluster, hour)

    def status(row: WorkloadHour) -> str:
        if row.running:
            return "Running"
        earlier = before.get(row.uid)
        known = status_of(row.uid) or archived.get(row.uid) or (earlier if earlier != "Running" else None)
        return known or "Completed"

    return status
