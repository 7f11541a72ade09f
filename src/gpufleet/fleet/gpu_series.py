"""Read the past of a fleet's GPUs from the metric source.

An exporter may name a node by its address and number the GPUs of a node differently. Live readings
are matched to GPUs when they enter the fleet; a range query is translated here, in both directions.
Points after `now` are left out: a metric source repeats its last sample for some minutes.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from gpufleet.fleet.state import Fleet
from gpufleet.model.metric_source import MetricSource
from gpufleet.model.reading import GpuRef, GpuSeries, Quantity


async def read_series(
    fleet: Fleet,
    metrics: MetricSource,
    quantity: Quantity,
    gpus: Collection[GpuRef],
    start: float,
    end: float,
    step: float,
) -> Sequence[GpuSeries]:
    """Return one quantity of some GPUs of the fleet at start, start+step, … up to `end` or now."""
    end = min(end, fleet.clock())
    if not gpus or start > end:
        return []
    own = exporter_refs(fleet, gpus)
    found = await metrics.series(quantity, own.keys(), start, end, step)
    return merge_series(found, own)


def exporter_refs(fleet: Fleet, gpus: Collection[GpuRef]) -> dict[GpuRef, GpuRef]:
    """Return the fleet's GPU by each reference that an exporter may use for it."""
    found: dict[GpuRef, GpuRef] = {}
    for gpu in sorted(gpus):
        index = fleet.gpu_columns.exporter_index(gpu.node, gpu.index)
        for node in fleet.node_names.exporter_names(gpu.node):
            found.setdefault(GpuRef(node, index, gpu.partition), gpu)
    return found


def merge_series(found: Sequence[GpuSeries], own: Mapping[GpuRef, GpuRef]) -> list[GpuSeries]:
    """Return the series under the fleet's references, in order; the series of one GPU become one."""
    by_gpu: dict[GpuRef, list[GpuSeries]] = {}
    for series in found:
        by_gpu.setdefault(own[series.gpu], []).append(series)
    return [_merged(gpu, by_gpu[gpu]) for gpu in sorted(by_gpu)]


def _merged(gpu: GpuRef, parts: Sequence[GpuSeries]) -> GpuSeries:
    if len(parts) == 1:
        return GpuSeries(gpu, parts[0].times, parts[0].values)
    times, first = np.unique(np.concatenate([part.times for part in parts]), return_index=True)
    return GpuSeries(gpu, times, np.concatenate([part.values for part in parts])[first])
