"""Read traces of GPU tasks: nodes and tasks as CSV, with the columns of Alibaba's openb data set.

Columns may be missing or empty, as in some files of that set: a node without CPU has an unknown
amount, a task without `gpu_milli` takes whole GPUs.
"""

import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpufleet.errors import InvalidRequest
from gpufleet.placement.node import CandidateGpu, CandidateNode
from gpufleet.placement.request import LEAST_SHARE, MOST_GPUS, WHOLE, Exclusivity, Policy, Request


@dataclass(frozen=True, slots=True)
class Task:
    """One row of the tasks file."""

    name: str
    request: Request


def read_nodes(lines: Iterable[str]) -> list[CandidateNode]:
    """Read nodes from CSV: `sn` (or `name`), `gpu`, and where known `model`, `cpu_milli`, `memory_mib`."""
    nodes: list[CandidateNode] = []
    seen: dict[str, int] = {}
    for line, row in _rows(lines, "nodes"):
        name = row.get("sn") or row.get("name")
        if not name:
            raise InvalidRequest(f"nodes, line {line}: a node needs a name in column sn")
        if seen.setdefault(name, line) != line:
            raise InvalidRequest(f"nodes, line {line}: node {name} repeats line {seen[name]}")
        model, count = row.get("model", ""), _whole(row, "gpu", 0, line)
        if count > MOST_GPUS:
            raise InvalidRequest(f"nodes, line {line}: gpu is {count}; the maximum is {MOST_GPUS}")
        gpus = tuple(CandidateGpu(at, model=model) for at in range(count))
        cpu, memory = row.get("cpu_milli"), row.get("memory_mib")
        nodes.append(
            CandidateNode(
                name,
                gpus,
                {"model": model} if model else {},
                cpu_milli=_whole(row, "cpu_milli", 0, line) if cpu else None,
                memory_mib=_whole(row, "memory_mib", 0, line) if memory else None,
            )
        )
    return nodes


def read_tasks(lines: Iterable[str]) -> list[Task]:
    """Read tasks from CSV: `name`, `num_gpu`, and where given `gpu_milli`, `gpu_spec`, `cpu_milli`, `memory_mib`."""
    tasks = []
    for line, row in _rows(lines, "tasks"):
        count = _whole(row, "num_gpu", 0, line)
        milli = _whole(row, "gpu_milli", WHOLE, line)
        shared = count == 1 and 0 < milli < WHOLE
        try:
            request = Request(
                count=count,
                policy=Policy.ANY,
                exclusivity=Exclusivity.SHARED if shared else Exclusivity.EXCLUSIVE,
                share_milli=max(milli, LEAST_SHARE) if shared else WHOLE,
                models=frozenset(filter(None, row.get("gpu_spec", "").split("|"))) if count else frozenset(),
                cpu_milli=_whole(row, "cpu_milli", 0, line),
                memory_mib=_whole(row, "memory_mib", 0, line),
            )
        except InvalidRequest as error:
            raise InvalidRequest(f"tasks, line {line}: {error}") from error
        tasks.append(Task(row.get("name") or f"task-{line:06}", request))
    return tasks


def arrivals(tasks: Sequence[Task], capacity_milli: int, load: float, rng: random.Random) -> list[Request]:
    """Return the arrivals: tasks sorted by name, shuffled, then drawn at random up to `load` times the capacity."""
    order = [task.request for task in sorted(tasks, key=lambda task: task.name)]
    pool = tuple(order)
    rng.shuffle(order)
    requested = sum(request.gpu_milli for request in order)
    if not any(request.gpu_milli for request in pool):
        return order
    while requested < load * capacity_milli:
        request = rng.choice(pool)
        order.append(request)
        requested += request.gpu_milli
    return order


def _rows(lines: Iterable[str], what: str) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(lines)
    if not reader.fieldnames:
        raise InvalidRequest(f"{what}: the file is empty; it needs a header row")
    for row in reader:
        yield reader.line_num, {key: value.strip() for key, value in row.items() if key and value}


def _whole(row: dict[str, str], column: str, default: int, line: int) -> int:
    text = row.get(column, "")
    if not text:
        return default
    try:
        number = int(float(text))
    except (ValueError, OverflowError):
        number = -1
    if number < 0:
        raise InvalidRequest(f"line {line}: {column} is {text!r}; it must be a number of 0 or more")
    return number
