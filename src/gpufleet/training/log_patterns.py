"""The table of log lines that training frameworks write.

A pattern recognises a line by `hint`, a plain substring that makes all other lines cheap to skip, and
then by the regular expression `line`. Each named group of `line` is a metric of that name. Where the
line is a list of name-value pairs, `pairs` finds them, with the groups `name` and `value`.
`gpufleet.training.metric_names` unifies the names. Pairs with other names are kept only for frameworks
whose users choose the names (`open`).

To add a framework, add a pattern here and a sample log in `tests/training/logs`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

NUMBER = r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_BARS = re.compile(rf"(?:^|\|)\s*(?P<name>[^|:]{{1,64}}):\s*(?P<value>{NUMBER})")


@dataclass(frozen=True)
class LogPattern:
    """How to read one kind of log line."""

    framework: str
    hint: str
    line: re.Pattern[str]
    pairs: re.Pattern[str] | None = None
    open: bool = False
    """Whether to keep pairs with unknown names, because users choose them."""
    ignored: frozenset[str] = frozenset()
    scales: Mapping[str, float] = field(default_factory=dict)
    """Factors for metrics that this framework writes in another unit."""


PATTERNS: tuple[LogPattern, ...] = (
    # [20251202 09:12:08][rank-7/8][INFO ] [--------trainer.py:2560] : iteration 126/ 5000 | consumed samples: …
    LogPattern(
        "Primus",
        "[rank-",
        re.compile(r"\[rank-(?P<rank>\d+)/\d+\].{0,200}?\biteration\s+(?P<step>\d+)\s*/\s*\d+\s*(?=\|)"),
        _BARS,
    ),
    # [2024-05-14 12:00:00] iteration      100/  500000 | consumed samples:        25600 | elapsed time …
    LogPattern(
        "Megatron-LM",
        "iteration",
        re.compile(r"\biteration\s+(?P<step>\d+)\s*/\s*\d+\s*(?=\|)"),
        _BARS,
    ),
    # [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=4, lr=[4.99e-05, 4.99e-05], mom=[…]
    LogPattern(
        "DeepSpeed",
        "lr=[",
        re.compile(
            rf"\[Rank (?P<rank>\d+)\] step=(?P<step>\d+), skipped=\d+, lr=\[(?P<learning_rate>{NUMBER})"
        ),
    ),
    # [INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, RunningAvgSamplesPerSec=25.0, CurrSamplesPerSec=25.7, …
    LogPattern(
        "DeepSpeed",
        "CurrSamplesPerSec=",
        re.compile(
            rf"(?:global_step=|\b\d+/)(?P<step>\d+), RunningAvgSamplesPerSec=[^,]{{1,40}}, "
            rf"CurrSamplesPerSec=(?P<samples_per_second>{NUMBER})"
        ),
    ),
    # steps: 10 loss: 5.2301 iter time (s): 1.234 samples/sec: 207.456
    LogPattern(
        "DeepSpeed",
        "samples/sec:",
        re.compile(
            rf"steps:\s*(?P<step>\d+)\s+loss:\s*(?P<loss>{NUMBER})\s+iter time \(s\):\s*(?P<step_time>{NUMBER})"
            rf"\s+samples/sec:\s*(?P<samples_per_second>{NUMBER})"
        ),
    ),
    # {'loss': 2.5, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.01}
    LogPattern(
        "Hugging Face Trainer",
        "'epoch'",
        re.compile(r"\{(?='[\w./-]{1,64}':)(?=[^{}]*'epoch':)"),
        re.compile(rf"'(?P<name>[\w./-]{{1,64}})':\s*'?(?P<value>{NUMBER})'?\s*(?=[,}}])"),
        open=True,
        ignored=frozenset({"train_loss"}),  # the mean of the whole run, logged at its end
    ),
    # Epoch 3:  45%|████▌     | 450/1000 [01:23<01:41,  5.42it/s, v_num=0, train_loss=0.123]
    LogPattern(
        "PyTorch Lightning",
        "Epoch ",
        re.compile(r"Epoch (?P<epoch>\d+):.{0,200}?\d+/\d+ \[[^\]<]{1,20}<[^\],]{1,20}(?=,)"),
        re.compile(
            rf"(?:,\s*(?P<name>[A-Za-z_][\w./ -]{{0,63}})=(?P<value>{NUMBER})(?=[,\]])"
            rf"|,\s*(?P<rate>{NUMBER})(?P<unit>it/s|s/it))"
        ),
        open=True,
        ignored=frozenset({"v_num"}),
    ),
    # Epoch 0/9 ━━━━━━━━━━━━ 100/938 0:00:05 • 0:00:40 21.3it/s v_num: 0 train_loss: 0.25
    LogPattern(
        "PyTorch Lightning",
        "it/s ",
        re.compile(rf"Epoch (?P<epoch>\d+)/\d+ .{{0,200}}?(?P<steps_per_second>{NUMBER})it/s(?= )"),
        re.compile(rf"\s(?P<name>[A-Za-z_][\w./-]{{0,63}}):\s+(?P<value>{NUMBER})(?=\s|$)"),
        open=True,
        ignored=frozenset({"v_num"}),
    ),
    # [titan] 2026-03-24 10:00:00 - root - INFO - step: 80  loss:  2.1  memory:  5.71GiB(6.01%)  tps: 57,729  tflops: 78.76  mfu: 7.96%
    LogPattern(
        "TorchTitan",
        "tps:",
        re.compile(r"\bstep:\s*(?P<step>\d[\d,]*)\s"),
        re.compile(rf"(?:^|\s)(?P<name>[a-z_]{{1,32}}):\s*(?P<value>{NUMBER})(?=%?(?:\s|$))"),
        scales={"mfu": 0.01},
    ),
)
