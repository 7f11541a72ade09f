"""Read a trace with times: tasks as CSV with the columns of Alibaba's openb data set.

Besides the columns of a trace for placement, a task has `creation_time`, `scheduled_time` and
`deletion_time` in seconds. A task that was never scheduled is deleted at its time, running or not.
`qos` names its queue and, by rank, its priority. Optional columns are `members` (a gang of equal pods),
`priority`, `queue`, `owner`, `workload` and `max_runtime`.
"""

import csv
from collections.abc import Iterable

from gpufleet.errors import InvalidRequest
from gpufleet.placement.simulation.trace import read_tasks
from gpufleet.simulation.unit import Unit

QOS_PRIORITIES = {"LS": 100, "Guaranteed": 100, "Burstable": 50}
"""Latency-sensitive tasks go first; all others, such as best effort, have priority 0."""


def read_timed_tasks(lines: Iterable[str]) -> list[Unit]:
    """Read tasks with times; those without GPUs are left out, as they wait for no GPU."""
    text = list(lines)
    rows = list(csv.DictReader(text))
    units: list[Unit] = []
    if rows and not {"creation_time", "deletion_time"} <= rows[0].keys():
        raise InvalidRequest("a trace with times needs the columns creation_time and deletion_time")
    for line, (row, task) in enumerate(zip(rows, read_tasks(text), strict=True), 2):
        if not task.request.count:
            continue
        created, scheduled = _seconds(row, "creation_time", line), _seconds(row, "scheduled_time", line)
        deleted = _seconds(row, "deletion_time", line)
        if created is None or deleted is None:
            raise InvalidRequest(f"line {line}: a task needs creation_time and deletion_time")
        qos = row.get("qos") or "default"
        units.append(
            Unit(
                len(units),
                task.request,
                created,
                max(deleted - (scheduled if scheduled is not None else created), 1.0),
                members=int(_seconds(row, "members", line) or 1),
                priority=int(_seconds(row, "priority", line) or QOS_PRIORITIES.get(qos, 0)),
                queue=row.get("queue") or qos,
                owner=row.get("owner") or "",
                workload=row.get("workload") or "",
                declared=_seconds(row, "max_runtime", line),
                leaves_at=max(deleted, created + 1.0) if scheduled is None else None,
            )
        )
    return units


def _seconds(row: dict[str, str], column: str, line: int) -> float | None:
    text = row.get(column)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"line {line}: {column} is {text!r}; it must be a number of seconds") from None
