"""Extract training metrics from the lines of a job's log.

A line may be a progress bar redrawn after carriage returns, may contain colour codes, and may have any
length. The reader strips colours and cuts long lines. The lines of several ranks may be interleaved;
a prefix such as `[rank3]:`, `[Rank 3]` or `[rank-7/8]` names the rank. A line with the same numbers as
the previous one, such as a redrawn progress bar, yields no points.
"""

import math
import re
from collections.abc import Iterator, Sequence

from gpufleet.model.training_point import TrainingPoint
from gpufleet.training.lightning_csv import LightningCsvReader
from gpufleet.training.log_patterns import PATTERNS, LogPattern
from gpufleet.training.metric_names import is_metric_name, unify

MAX_LINE_LENGTH = 2048
"""Characters read of one line."""

MAX_POINTS_PER_LINE = 64
"""Points taken from one line."""

_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_LINE_END = re.compile(r"[\r\n]")
_RANK = re.compile(r"\[(?:rank|Rank|RANK|default)[ -]?(?P<rank>\d{1,7})(?:/\d+)?\]")
_MAX_RANK = 1_000_000
_MAX_REMEMBERED = 4096


class LogReader:
    """Read the log of one job, line by line in order; try user patterns before the built-in ones."""

    def __init__(self, user_patterns: Sequence[LogPattern] = ()) -> None:
        self._patterns = (*user_patterns, *PATTERNS)
        self._last: dict[tuple[int, int | None], dict[str, float]] = {}
        self._csv = LightningCsvReader()
        self._incomplete = ""

    def feed(self, text: str, now: float) -> list[TrainingPoint]:
        """Return the points in a chunk of the log that may end in the middle of a line."""
        # A progress bar may not end its line for hours: each redraw counts when the next one begins.
        *lines, incomplete = _LINE_END.split(self._incomplete + text)
        self._incomplete = incomplete[-MAX_LINE_LENGTH:]
        return [point for line in lines for point in self.read(line, now)]

    def read(self, line: str, now: float) -> list[TrainingPoint]:
        """Return the points in one line, with the time `now` in Unix seconds."""
        points: list[TrainingPoint] = []
        for redraw in line[-8 * MAX_LINE_LENGTH :].split("\r"):
            text = _COLOUR.sub("", redraw[:MAX_LINE_LENGTH]).strip()
            if text:
                points += self._match(text, now)
        return points

    def _match(self, text: str, now: float) -> list[TrainingPoint]:
        for number, pattern in enumerate(self._patterns):
            if pattern.hint in text and (match := pattern.line.search(text)):
                values = dict(_values(pattern, match, text))
                if not values:
                    continue
                rank = _rank(match.groupdict().get("rank"), text)
                if self._last.get((number, rank)) == values:
                    return []
                self._remember((number, rank), values)
                return _points(values, now, rank)
        return _points(self._csv.read(text), now, None)

    def _remember(self, key: tuple[int, int | None], values: dict[str, float]) -> None:
        self._last[key] = values
        while len(self._last) > _MAX_REMEMBERED:
            del self._last[next(iter(self._last))]


def _values(pattern: LogPattern, match: re.Match[str], text: str) -> Iterator[tuple[str, float]]:
    for name, value in match.groupdict().items():
        if name != "rank" and value is not None:
            yield from _value(pattern, name, value)
    if pattern.pairs is None:
        return
    for pair in pattern.pairs.finditer(text, match.end() if pattern.framework != "TorchTitan" else 0):
        found = pair.groupdict()
        if found.get("rate") is not None:
            yield from _value(pattern, found["unit"], found["rate"])
        else:
            yield from _value(pattern, found["name"], found["value"])


def _value(pattern: LogPattern, name: str, text: str) -> Iterator[tuple[str, float]]:
    name = name.strip()
    if name in pattern.ignored:
        return
    metric, scale = unify(name)
    if metric == name and not (pattern.open or name in pattern.line.groupindex or name in _SHORT):
        return
    try:
        number = float(text.replace(",", "")) * scale * pattern.scales.get(metric, 1)
    except ValueError:
        return
    if math.isfinite(number) and is_metric_name(metric):
        yield metric, number


_SHORT = frozenset({"loss", "tflops", "mfu", "grad_norm", "learning_rate", "lr"})
"""Names that mean the same in every framework."""


def _rank(group: str | None, text: str) -> int | None:
    if group is None:
        match = _RANK.search(text[:200])
        group = match["rank"] if match else None
    rank = int(group) if group is not None and len(group) < 8 else None
    return rank if rank is not None and rank < _MAX_RANK else None


def _points(values: dict[str, float], now: float, rank: int | None) -> list[TrainingPoint]:
    first = list(values.items())[:MAX_POINTS_PER_LINE]
    return [TrainingPoint(name, value, now, rank) for name, value in first]
