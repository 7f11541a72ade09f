"""An hour by the slow reference and an hour from the store, as rows that can be compared."""

from collections.abc import Collection, Sequence
from fractions import Fraction
from typing import Any

from tests.accounting import reference

from gpufleet.model.hours import KILOWATT_HOUR
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.statistics import (
    ClusterStatistics,
    HoursQuery,
    LabelStatistics,
    NamespaceStatistics,
    WorkloadHoursQuery,
    WorkloadStatistics,
)
from gpufleet.runtime.settings.prices import Price
from gpufleet.store import Store

TEAM = "team"
Rows = dict[tuple[str, str], tuple[Any, ...]]
"""GPU-hours, idle, cost, energy and utilization by kind of row (cluster, namespace, label, workload) and name."""


def expected_hour(
    hour: int,
    held: Sequence[AllocationPeriod],
    capacities: Sequence[CapacityPeriod],
    samples: Collection[reference.Sample],
    price: str | Sequence[Price],
    step: int = 300,
    read: Collection[reference.Sample] = (),
    power: Collection[reference.Sample] = (),
    excluded: Collection[str] = (),
) -> Rows:
    """Return the rows of an hour; `read` has the readings at the times at which they were taken."""
    prices = [Price(float(price))] if isinstance(price, str) else price
    had = reference.reference_allocations(hour, held, capacities)

    def row(mine: list[reference.ReferenceAllocation], *, by_gpu: bool) -> tuple[Any, ...]:
        found = reference.hits(mine, samples)
        points = [hit.value for hit in found] if by_gpu else reference.moments(found)
        extremes = reference.extremes(found, mine, read, step * 1000) if by_gpu else None
        cost = sum((h.part * (h.end - h.start) * reference.price(h, prices, hour) for h in mine), Fraction(0))
        energy = reference.energy(mine, power, step * 1000)
        return (
            reference.gpu_hours(mine),
            reference.idle_hours(found, mine, step * 1000),
            float(cost / reference.HOUR),
            None if energy is None else energy / KILOWATT_HOUR,
            *reference.spread(points, found, extremes).values(),
        )

    rows = {("cluster", ""): (reference.capacity_hours(hour, capacities), *row(had, by_gpu=False))}
    listed = [h for h in had if h.period.namespace not in excluded]
    for name, mine in reference.grouped(listed, lambda h: h.namespace).items():
        rows["namespace", name] = row(mine, by_gpu=False)
    for name, mine in reference.grouped(had, lambda h: h.labels.get(TEAM, "(none)")).items():
        rows["label", name] = row(mine, by_gpu=False)
    for name, mine in reference.grouped(listed, lambda h: h.workload_uid).items():
        rows["workload", name] = row(mine, by_gpu=True)
    return rows


async def stored_hour(store: Store, cluster: str, hour: int) -> Rows:
    number = hour // 3600
    span = HoursQuery(cluster=cluster, first=number, last=number, limit=10_000)
    found: list[tuple[tuple[str, str], tuple[Any, ...]]] = [
        (("cluster", ""), (row.capacity_gpu_hours, *_amounts(row)))
        for row in await store.statistics.cluster_hours(span)
    ]
    found += [
        (("namespace", row.namespace), _amounts(row))
        for row in await store.statistics.namespace_hours(span, "")
    ]
    found += [
        (("label", row.dimension_value), _amounts(row))
        for row in await store.statistics.label_hours(span, "label", TEAM, "")
    ]
    query = WorkloadHoursQuery(cluster=cluster, first=number, last=number, limit=10_000)
    total, workloads = await store.workload_pages.page(query)
    assert total == len(workloads)
    found += [(("workload", row.owner_uid), _amounts(row)) for row in workloads]
    assert len(dict(found)) == len(found), "a row is there twice"
    return dict(found)


def _amounts(
    row: ClusterStatistics | NamespaceStatistics | LabelStatistics | WorkloadStatistics,
) -> tuple[Any, ...]:
    return (
        row.allocated_gpu_hours,
        row.idle_gpu_hours,
        row.cost,
        row.energy_kwh,
        row.sample_count,
        row.avg_utilization,
        row.max_utilization,
        row.min_utilization,
        row.p50_utilization,
        row.p95_utilization,
    )
