"""Read a job's log: lines in, training numbers out.

A line may be a progress bar that redraws itself after carriage returns, may be coloured, and may
be of any length: colours are taken off and what is long is cut. Lines of several ranks come mixed;
the rank is taken from the line where it says so (`[rank3]:`, `[Rank 3]`, `[rank-7/8]`). A line that
says what the one before it said, as a bar that is drawn again does, gives nothing.
"""

import math
import re
from collections.abc import Iterator, Sequence

from gpufleet.model.training_point import TrainingPoint
from gpufleet.training.lightning_csv import CsvLines
from gpufleet.training.names import is_name, unified
from gpufleet.training.patterns import PATTERNS, Pattern

LONGEST_LINE = 2048
"""Characters of a line that are looked at."""

MOST_POINTS = 64
"""Numbers that are taken from one line."""

_COLOUR = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_END = re.compile(r"[\r\n]")
_RANK = re.compile(r"\[(?:rank|Rank|RANK|default)[ -]?(?P<rank>\d{1,7})(?:/\d+)?\]")
_MOST_RANK = 1_000_000


class LogReader:
    """Reads the log of one job; feed it lines in their order."""

    def __init__(self, own: Sequence[Pattern] = ()) -> None:
        self._patterns = (*own, *PATTERNS)
        self._last: dict[tuple[int, int | None], dict[str, float]] = {}
        self._csv = CsvLines()
        self._rest = ""

    def feed(self, text: str, now: float) -> list[TrainingPoint]:
        """The numbers in a piece of the log that may end within a line."""
        # A bar that redraws itself ends no line for hours: each drawing counts when the next begins.
        *lines, rest = _END.split(self._rest + text)
        self._rest = rest[-LONGEST_LINE:]
        return [point for line in lines for point in self.read(line, now)]

    def read(self, line: str, now: float) -> list[TrainingPoint]:
        """The numbers in one line, taken at `now` (seconds since the epoch)."""
        points: list[TrainingPoint] = []
        for drawn in line[-8 * LONGEST_LINE :].split("\r"):
            text = _COLOUR.sub("", drawn[:LONGEST_LINE]).strip()
            if text:
                points += self._look(text, now)
        return points

    def _look(self, text: str, now: float) -> list[TrainingPoint]:
        for number, pattern in enumerate(self._patterns):
            if pattern.hint in text and (match := pattern.line.search(text)):
                found = dict(_numbers(pattern, match, text))
                if not found:
                    continue
                rank = _rank(match.groupdict().get("rank"), text)
                if self._last.get((number, rank)) == found:
                    return []
                self._remember((number, rank), found)
                return _points(found, now, rank)
        return _points(self._csv.read(text), now, None)

    def _remember(self, key: tuple[int, int | None], found: dict[str, float]) -> None:
        self._last[key] = found
        while len(self._last) > 4096:
            del self._last[next(iter(self._last))]


def _numbers(pattern: Pattern, match: re.Match[str], text: str) -> Iterator[tuple[str, float]]:
    for name, value in match.groupdict().items():
        if name != "rank" and value is not None:
            yield from _number(pattern, name, value)
    if pattern.pairs is None:
        return
    for pair in pattern.pairs.finditer(text, match.end() if pattern.framework != "TorchTitan" else 0):
        found = pair.groupdict()
        if found.get("rate") is not None:
            yield from _number(pattern, found["unit"], found["rate"])
        else:
            yield from _number(pattern, found["name"], found["value"])


def _number(pattern: Pattern, name: str, value: str) -> Iterator[tuple[str, float]]:
    name = name.strip()
    if name in pattern.ignored:
        return
    known, scale = unified(name)
    if known == name and not (pattern.open or name in pattern.line.groupindex or name in _SHORT):
        return
    try:
        number = float(value.replace(",", "")) * scale * pattern.scales.get(known, 1)
    except ValueError:
        return
    if math.isfinite(number) and is_name(known):
        yield known, number


_SHORT = frozenset({"loss", "tflops", "mfu", "grad_norm", "learning_rate", "lr"})
"""Names that mean the same in every framework."""


def _rank(said: str | None, text: str) -> int | None:
    if said is None:
        match = _RANK.search(text[:200])
        said = match["rank"] if match else None
    rank = int(said) if said is not None and len(said) < 8 else None
    return rank if rank is not None and rank < _MOST_RANK else None


def _points(found: dict[str, float], now: float, rank: int | None) -> list[TrainingPoint]:
    return [TrainingPoint(name, value, now, rank) for name, value in list(found.items())[:MOST_POINTS]]
