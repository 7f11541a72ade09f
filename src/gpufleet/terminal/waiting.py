"""Waiting workloads with the time at which each is expected to start."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus

import msgspec

from gpufleet.client import ApiError, types
from gpufleet.terminal.columns import Column, age


class Waiting(types.WorkloadRow, kw_only=True):
    """A waiting workload; without an estimate if its GPUs are not allocated by gpufleet."""

    estimate: types.StartEstimate | None = None


def with_estimates(rows: Iterable[types.WorkloadRow], units: Iterable[types.QueuedUnit]) -> list[Waiting]:
    """Return the workloads with the estimates of their claims; the last start counts."""
    estimates = {(unit.namespace, claim): unit.estimate for unit in units for claim in unit.claims}
    found = []
    for row in rows:
        own = [estimates[key] for claim in row.claims if (key := (row.namespace, claim)) in estimates]
        last = max(own, key=lambda each: each.position, default=None)
        found.append(Waiting(**msgspec.structs.asdict(row), estimate=last))
    return found


@contextmanager
def no_queue_off_kubernetes() -> Iterator[None]:
    """Ignore that a server has no queue for the cluster."""
    try:
        yield
    except ApiError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


def _start(row: Waiting) -> float | None:
    """Return the seconds until the workload is expected to start."""
    if row.estimate is None or row.estimate.expected_start is None:
        return row.expected_start - datetime.now(UTC).timestamp() if row.expected_start else None
    return (datetime.fromisoformat(row.estimate.expected_start) - datetime.now(UTC)).total_seconds()


START = Column("STARTS-IN", _start, live=True, text=lambda seconds: f"~{age(seconds)}")
