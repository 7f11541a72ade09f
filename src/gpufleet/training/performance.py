"""TFLOPS of a GPU and model FLOPs utilization, where a job tells enough to know them.

What the job tells itself counts. Else the TFLOPS of one GPU come from its tokens per second and the
size of its model: a token costs 6 FLOPs for each parameter (forward and backward) and, where
layers, hidden size and sequence length are told, 12 · layers · hidden size · sequence length for
attention. Recomputation is not counted: it is no work that the model needs. MFU is the TFLOPS
divided by the peak of the GPUs that the job holds, in the precision that it tells (16 bits
if it tells none).
"""

from collections.abc import Iterable, Mapping, Sequence

from gpufleet.model.reading import TrainingPoint
from gpufleet.training.names import unified
from gpufleet.training.peak_tflops import peak_tflops

FACTS = ("parameters", "layers", "hidden_size", "sequence_length", "precision_bits")
"""Numbers that describe the model; the newest of each counts."""


def flops_per_token(facts: Mapping[str, float]) -> float | None:
    """FLOPs that one token takes in training; None without the number of parameters."""
    parameters = facts.get("parameters")
    if not parameters or parameters <= 0:
        return None
    attention = 12.0
    for name in ("layers", "hidden_size", "sequence_length"):
        attention *= max(0.0, facts.get(name, 0.0))
    return 6.0 * parameters + attention


def mean_peak(models: Mapping[str, int], precision: int) -> float | None:
    """The mean peak of the GPUs, by model and count; None if the peak of any is not known."""
    peaks = [(peak_tflops(model, precision), count) for model, count in models.items() if count > 0]
    if not peaks or any(peak is None for peak, _ in peaks):
        return None
    return sum((peak or 0.0) * count for peak, count in peaks) / sum(count for _, count in peaks)


def performance(points: Sequence[TrainingPoint], models: Mapping[str, int]) -> list[TrainingPoint]:
    """The points `tflops` and `mfu` of a job on GPUs of these models, in the order of the points."""
    unit = [_unified(point) for point in points]
    facts = {point.metric: point.value for point in unit if point.metric in FACTS}
    told = {(point.time, point.rank) for point in unit if point.metric == "tflops"}
    own_mfu = {(point.time, point.rank) for point in unit if point.metric == "mfu"}
    peak = mean_peak(models, round(facts.get("precision_bits", 16)))
    cost, gpus = flops_per_token(facts), sum(models.values())
    found: list[TrainingPoint] = []
    for point in unit:
        key = (point.time, point.rank)
        if point.metric == "mfu":
            found.append(point)
            continue
        tflops = _tflops(point, cost, gpus) if point.metric == "tflops" or key not in told else None
        if tflops is None:
            continue
        told.add(key)  # tokens per second may be told of the job and of one GPU
        found.append(TrainingPoint("tflops", tflops, point.time, point.rank))
        if peak and key not in own_mfu:
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
    name, scale = unified(point.metric)
    return point if name == point.metric else point._replace(metric=name, value=point.value * scale)


def in_steps(points: Iterable[TrainingPoint], start: float, step: float) -> list[tuple[float, float]]:
    """Means over each `step` seconds from `start` as (value, time), so that many ranks are one line."""
    sums: dict[int, tuple[float, int]] = {}
    for point in points:
        place = int((point.time - start) // step)
        total, count = sums.get(place, (0.0, 0))
        sums[place] = (total + point.value, count + 1)
    return [(total / count, start + place * step) for place, (total, count) in sorted(sums.items())]
