"""Unified names and units of training metrics, independent of the framework that reports them.

| name | unit |
| --- | --- |
| `step`, `epoch` | count |
| `loss`, `grad_norm`, `learning_rate`, `loss_scale`, `accuracy` | none |
| `step_time` | seconds per step |
| `samples_per_second`, `tokens_per_second` | of the whole job |
| `tokens_per_second_per_gpu` | of one GPU |
| `tflops` | achieved, per GPU |
| `mfu` | model FLOPs utilization, 0.0 to 1.0 |
| `parameters`, `layers`, `hidden_size`, `sequence_length`, `precision_bits` | of the model, for TFLOPS and MFU |

All other names stay as they are.
"""

import re

NameAndScale = tuple[str, float]
"""A unified name, and the factor that converts a value to its unit."""

ALIASES: dict[str, NameAndScale] = {
    "iteration": ("step", 1),
    "global_step": ("step", 1),
    "steps": ("step", 1),
    "lm loss": ("loss", 1),
    "total loss": ("loss", 1),
    "train_loss": ("loss", 1),
    "train_loss_step": ("loss", 1),
    "train/loss": ("loss", 1),
    "training_loss": ("loss", 1),
    "reduced_train_loss": ("loss", 1),
    "lr": ("learning_rate", 1),
    "learning rate": ("learning_rate", 1),
    "grad norm": ("grad_norm", 1),
    "gradient_norm": ("grad_norm", 1),
    "loss scale": ("loss_scale", 1),
    "acc": ("accuracy", 1),
    "train_acc": ("accuracy", 1),
    "train_accuracy": ("accuracy", 1),
    "global batch size": ("global_batch_size", 1),
    "consumed samples": ("consumed_samples", 1),
    "elapsed time per iteration (ms)": ("step_time", 0.001),
    "train_step_timing in s": ("step_time", 1),
    "iter time (s)": ("step_time", 1),
    "throughput per gpu (tflop/s/gpu)": ("tflops", 1),
    "compute per gpu (tflop/s/gpu)": ("tflops", 1),
    "tflops_per_gpu": ("tflops", 1),
    "tokens per gpu (tokens/s/gpu)": ("tokens_per_second_per_gpu", 1),
    "tokens/s/gpu inst/harmonic mean": ("tokens_per_second_per_gpu", 1),
    "tokens per second per gpu (tok/s/gpu)": ("tokens_per_second_per_gpu", 1),
    "tps": ("tokens_per_second_per_gpu", 1),
    "train_tokens_per_second": ("tokens_per_second", 1),
    "tokens/sec": ("tokens_per_second", 1),
    "samples/sec": ("samples_per_second", 1),
    "train_samples_per_second": ("samples_per_second", 1),
    "train_steps_per_second": ("steps_per_second", 1),
    "it/s": ("steps_per_second", 1),
    "s/it": ("step_time", 1),
    "num_parameters": ("parameters", 1),
    "num_layers": ("layers", 1),
    "seq_length": ("sequence_length", 1),
    "seq_len": ("sequence_length", 1),
}
"""Names as frameworks write them, in lower case."""

NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_./:@ ()%-]{0,127}(?!\n)$"
"""Valid metric names."""

_NAME = re.compile(NAME_PATTERN)
_UNIFIED = frozenset(name for name, _ in ALIASES.values()) | {"mfu", "epoch", "eval_loss", "hidden_size"}


def unify(name: str) -> NameAndScale:
    """Return the unified name of a metric and the factor that converts its values."""
    lowered = name.strip().lower()
    return ALIASES.get(lowered, (lowered if lowered in _UNIFIED else name.strip(), 1))


def is_metric_name(name: str) -> bool:
    """Return whether `name` is a valid metric name."""
    return _NAME.match(name) is not None
