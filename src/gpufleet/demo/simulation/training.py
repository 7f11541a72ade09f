"""Training metrics of simulated runs: loss, throughput, MFU.

The loss falls as a power of the number of tokens, with noise and occasional spikes. Throughput dips
during checkpoints. MFU is the throughput relative to the peak of the GPUs.
"""

import math
from collections.abc import Iterator

import numpy as np

from gpufleet.demo.simulation.curves import noise
from gpufleet.demo.simulation.timeline import Run
from gpufleet.model.reading import TrainingPoint

EVERY = 60.0
"""Seconds between reports."""

_TOKENS_PER_TFLOP = 1e12 / (6 * 8e9)
"""Tokens per TFLOP for a model with 8 billion parameters."""


def training_points(run: Run, start: float, end: float, every: float = EVERY) -> Iterator[TrainingPoint]:
    """Yield the metrics of a run after `start` up to `end`, at multiples of `every` seconds since its start."""
    if not run.trains or run.started >= end:
        return
    first = max(1, math.floor((start - run.started) / every) + 1)
    last = math.floor((min(end, run.ended) - run.started) / every)
    if last < first:
        return
    peak = run.slot.model.peak_tflops
    times = run.started + every * np.arange(first, last + 1, dtype=np.float64)
    dice = noise(np.array([run.slot.number + 1]), times)[0]
    for time, chance in zip(times.tolist(), dice.tolist(), strict=True):
        age = time - run.started
        pause = 0.3 if age % 1800.0 > 1740.0 else 1.0
        mfu = run.level * 0.46 * pause * (0.97 + 0.06 * chance)
        per_gpu = mfu * peak
        tokens = per_gpu * _TOKENS_PER_TFLOP * run.slot.gpus
        spike = 0.6 if chance > 0.995 else 0.0
        loss = 1.7 + 9.3 * (1 + age / 90.0) ** -0.45 + 0.04 * (chance - 0.5) + spike
        yield TrainingPoint("loss", round(loss, 4), time)
        yield TrainingPoint("tokens_per_second", round(tokens, 1), time)
        yield TrainingPoint("TFLOPS", round(per_gpu, 1), time)
        yield TrainingPoint("mfu", round(mfu, 4), time)
        yield TrainingPoint("learning_rate", round(_rate(age), 8), time)
        yield TrainingPoint("step", float(int(age / 2.5)), time)


def _rate(age: float) -> float:
    """Return the learning rate: half an hour of warm-up, then a cosine over a day."""
    if age < 1800:
        return 3e-4 * age / 1800
    return 3e-5 + 2.7e-4 * 0.5 * (1 + math.cos(math.pi * min(1.0, age / 86_400)))
