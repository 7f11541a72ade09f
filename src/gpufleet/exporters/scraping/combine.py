"""Combine the answers of all agents into one `Readings` and one `Processes`."""

from collections.abc import Iterable, Mapping

import numpy as np

from gpufleet.exporters.columns import to_quantity_unit
from gpufleet.exporters.known_exporters import AGENT
from gpufleet.exporters.scraping.exposition import AgentMetrics
from gpufleet.model.reading import Fault, GpuIdentity, Processes, Readings


def combined_readings(answers: Iterable[AgentMetrics], errors: Mapping[str, str], at: float) -> Readings:
    """Return the readings of all agents that answered; NaN for a quantity that a GPU does not report."""
    answers = list(answers)
    gpus: list[GpuIdentity] = []
    times: list[float] = []
    for answer in answers:
        gpus += answer.gpus.values()
        times += [answer.at] * len(answer.gpus)
    order = sorted(range(len(gpus)), key=lambda row: gpus[row].ref)
    ordered = tuple(gpus[row] for row in order)
    taken = np.array([times[row] for row in order], np.float64)
    rows = {gpu.ref: row for row, gpu in enumerate(ordered)}
    values, sampled = {}, {}
    for quantity, metrics in AGENT.metrics.items():
        column = np.full(len(ordered), np.nan)
        for answer in answers:
            for ref, value in answer.values.get(quantity, {}).items():
                column[rows[ref]] = value
        column = to_quantity_unit(quantity, metrics[0], column, False)
        if not np.isnan(column).all():
            values[quantity], sampled[quantity] = column, np.where(np.isnan(column), np.nan, taken)
    faults: dict[int, tuple[Fault, ...]] = {}
    for answer in answers:
        faults |= {rows[ref]: tuple(found) for ref, found in answer.faults.items() if ref in rows}
    return Readings(at, ordered, values, sampled, faults=faults, errors=errors)


def combined_processes(answers: Iterable[AgentMetrics]) -> Processes:
    """Return the processes of all agents that answered, by GPU and pid."""
    found = [process for answer in answers for process in answer.processes]
    return Processes(tuple(sorted(found, key=lambda process: (process.gpu, process.pid))))
