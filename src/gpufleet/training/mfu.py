"""Compute TFLOPS per GPU and model FLOPs utilization (MFU) from the numbers that a job reports.

Values that the job reports itself take precedence. Otherwise the TFLOPS of one GPU follow from tokens
per second and the size of the model. A token costs 6 FLOPs per parameter (forward and backward) plus,
where layers, hidden size and sequence length are reported, 12 · layers · hidden size · sequence length
for attention. Recomputation does not count, because the model does not need it. MFU is TFLOPS divided
by the mean peak of the job's GPUs at the reported precision (16 bits by default).
"""

from collections.abc import Iterable, Mapping, Sequence

from gpufleet.model.training_point import TrainingPoint
from gpufleet.training.metric_names import unify
from gpufleet.training.peak_tflops import peak_tflops

MODEL_METRICS = ("parameters", "layers", "hidden_size", "sequence_length", "precision_bits")
"""Metrics that describe the model; the newest value of each counts."""


def flops_per_token(model: Mapping[str, float]) -> float | None:
    """Return the FLOPs that training takes per token; None without the number of parameters."""
    parameters = model.get("parameters")
    if not parameters or parameters <= 0:
        return None
    attention = 12.0
    for name in ("layers", "hidden_size", "sequence_length"):
        attention *= max(0.0, model.get(name, 0.0))
    return 6.0 * parameters + attention


def mean_peak(gpu_counts: Mapping[str, int], precision: int) -> float | None:
    """Return the mean peak TFLOPS of GPUs counted by model; None if the peak of any model is unknown."""
    peaks = [(peak_tflops(model, precision), count) for model, count in gpu_counts.items() if count > 0]
    if not peaks or any(peak is None for peak, _ in peaks):
        return None
    return sum((peak or 0.0) * count for peak, count in peaks) / sum(count for _, count in peaks)


def tflops_and_mfu(points: Sequence[TrainingPoint], gpu_counts: Mapping[str, int]) -> list[TrainingPoint]:
    """Return the `tflops` and `mfu` points of a job on GPUs counted by model, in the order of `points`."""
    points = [_unified(point) for point in points]
    model = {point.metric: point.value for point in points if point.metric in MODEL_METRICS}
    has_tflops = {(point.time, point.rank) for point in points if point.metric == "tflops"}
    has_mfu = {(point.time, point.rank) for point in points if point.metric == "mfu"}
    peak = mean_peak(gpu_counts, round(model.get("precision_bits", 16)))
    cost, gpus = flops_per_token(model), sum(gpu_counts.values())
    found: list[TrainingPoint] = []
    for point in points:
        key = (point.time, point.rank)
        if point.metric == "mfu":
            found.append(point)
            continue
        tflops = _tflops(point, cost, gpus) if point.metric == "tflops" or key not in has_tflops else None
        if tflops is None:
            continue
        has_tflops.add(key)  # a job may report tokens per second both for itself and for one GPU
        found.append(TrainingPoint("tflops", tflops, point.time, point.rank))
        if peak and key not in has_mfu:
            found.append(TrainingPoint("mfu", tflops / peak, point.time, point.rank))
    return found


def _tflops(point: TrainingPoint, cost: float | None, gpus: int) -> float | None:
    if point.metric == "tflops":
        return point.value
    if cost is None:
        return None
    if point.metric == "tokens_per_second_per_gpu":
        return point.value * cost / 1e12
    if point.metric == "tokens_per_second" and gpus:
        return point.value * cost / gpus / 1e12
    return None


def _unified(point: TrainingPoint) -> TrainingPoint:
    name, scale = unify(point.metric)
    return point if name == point.metric else point._replace(metric=name, value=point.value * scale)


def step_means(points: Iterable[TrainingPoint], start: float, step: float) -> list[tuple[float, float]]:
    """Return the mean over all ranks in each `step` seconds from `start`, as (value, time)."""
    sums: dict[int, tuple[float, int]] = {}
    for point in points:
        index = int((point.time - start) // step)
        total, count = sums.get(index, (0.0, 0))
        sums[index] = (total + point.value, count + 1)
    return [(total / count, start + index * step) for index, (total, count) in sorted(sums.items())]
