"""A series has the points of the time in which the workload held the GPU."""

from typing import Any, cast

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.fleet.workloads.lookup import AllocatedGpu
from gpufleet.model.reading import GpuRef, GpuSeries
from gpufleet.server.routes.live.workload_metrics import Series, _points

GPU = GpuRef("a", 0)
moments = st.integers(0, 100).map(float)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(0, 1000).map(lambda value: round(value, 4)), max_size=50),
    st.lists(st.tuples(moments, st.just(0.0) | moments), min_size=1, max_size=3),
    st.sampled_from([1, 100]),
)
def test_points_are_cut_to_the_periods_and_scaled(
    values: list[float], spans: list[tuple[float, float]], scale: int
) -> None:
    times = 1.8e9 + 2.0 * np.arange(len(values), dtype=np.float64)
    held = [AllocatedGpu(GPU, 1.8e9 + start, 1.8e9 + end if end else 0.0) for start, end in spans]
    line = Series("GPU-0", _points(GpuSeries(GPU, times, np.array(values)), held, scale))
    decoded = cast(Any, msgspec.json.decode(msgspec.json.encode(line)))
    assert decoded["points"] == [
        [round(value / scale, 6), round(time * 1000)]
        for time, value in zip(times.tolist(), values, strict=True)
        if any(each.start <= time and (not each.end or time <= each.end) for each in held)
    ]
