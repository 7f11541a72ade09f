"""Decode Prometheus' answers into structs with only the labels needed, a slice at a time.

One C call that decodes 100,000 series holds the interpreter's lock for a tenth of a second,
whichever thread makes it, and every request waits. So a long answer is cut between its
series. The cut is safe without a parser: in JSON a quote inside a string is always escaped,
so `},{"metric":` can stand only where one series ends and the next begins. All slices but
the last are lists of series; the last is glued to the answer's head and decoded as a whole
answer, which is how status, error and a truncated tail are seen.

A source that gathers from several stores answers with what it has when one of them is down, and
says so: Thanos (and Prometheus, of what it reads from others) in `warnings`, a cluster of
VictoriaMetrics by `isPartial`. Whoever decodes is told. What Prometheus remarks on an expression
stands among the warnings too, always begins with `PromQL`, and says nothing about the data.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from gpufleet.errors import MetricsUnavailable
from gpufleet.model.reading import Column

Labels = Any
"""A frozen struct with one attribute per label asked for; which ones is known only at run time."""

_BETWEEN = b'},{"metric":'
_SLICE = 256 * 1024
_REMARK = re.compile(r"PromQL (info|warning)\b|\d+ more (info|warning) annotations omitted$")
_LONGEST_WARNING = 300
_OFF = 0.002
"""Seconds by which a time in an answer may differ from the one asked for, since both are rounded."""
Told = Callable[[str], None]
"""Hears why an answer may not be all that there is."""
T = TypeVar("T")


class MisalignedRange(MetricsUnavailable):
    """A range was answered for other times than asked for."""


class Point(Struct, array_like=True, gc=False):
    """A time and a value. Structs that the garbage collector need not look at save it long pauses."""

    time: float
    value: str


class Instant(Struct, gc=False):
    """A series of an instant query."""

    metric: Any
    value: Point


class RangeSeries(Struct, gc=False):
    """A series of a range query."""

    metric: Any
    values: list[Point]


class ResponseStatus(Struct, kw_only=True):
    """What a source says beside the result."""

    status: str
    error: str = ""
    warnings: list[str] | None = None
    is_partial: bool = msgspec.field(name="isPartial", default=False)

    @property
    def lacks(self) -> str:
        """Why the result may not be all that there is; empty if it is."""
        for warning in self.warnings or ():
            if not _REMARK.match(warning):
                return warning[:_LONGEST_WARNING]
        return "not all of its stores answered" if self.is_partial else ""


class Names(ResponseStatus, kw_only=True):
    """The answer to a question for names."""

    data: list[str] = []


class Data(Struct, Generic[T]):
    """The result of a query."""

    result: list[T] = []


class Answer(ResponseStatus, Generic[T], kw_only=True):
    """What Prometheus wraps around a result."""

    data: Data[T] | None = None


@lru_cache(maxsize=256)
def labels_type(names: tuple[str, ...]) -> type[Struct]:
    """A hashable struct of these labels; those that a series lacks are empty. `__name__` is `metric_name`."""
    fields = [("metric_name" if name == "__name__" else name, str, "") for name in names]
    return msgspec.defstruct("Labels", fields, frozen=True, gc=False, rename={"metric_name": "__name__"})


@lru_cache(maxsize=512)
def _decoders(
    kind: type[Struct], names: tuple[str, ...]
) -> tuple[msgspec.json.Decoder[Any], msgspec.json.Decoder[Any]]:
    series: Any = msgspec.defstruct(
        kind.__name__,
        [("metric", labels_type(names)), *((f.name, f.type) for f in msgspec.structs.fields(kind)[1:])],
        gc=False,
    )
    return msgspec.json.Decoder(list[series]), msgspec.json.Decoder(Answer[series])


def decode_instant(body: bytes, names: tuple[str, ...], told: Told) -> tuple[list[Labels], Column]:
    """The label sets of an instant query's series, and their values."""
    labels: list[Labels] = []
    values: list[float] = []
    for part in _slices(body, told, *_decoders(Instant, names)):
        labels.extend([series.metric for series in part])
        values.extend(_numbers([series.value.value for series in part]))
    return labels, np.array(values, dtype=np.float64)


def decode_range(
    body: bytes, names: tuple[str, ...], start: float, step: float, points: int, told: Told
) -> Iterator[tuple[Labels, Column]]:
    """The series of a range query, each on the grid of times start, start + step, …; NaN for a gap."""
    for part in _slices(body, told, *_decoders(RangeSeries, names)):
        for series in part:
            row = np.full(points, np.nan)
            times = np.array([point.time for point in series.values], dtype=np.float64)
            values = np.array(_numbers([point.value for point in series.values]), dtype=np.float64)
            places = np.rint((times - start) / step).astype(np.int64)
            inside = (places >= 0) & (places < points)
            if (np.abs(times - start - places * step)[inside] > _OFF).any():
                raise MisalignedRange("the metric source answers a range for other times than asked for")
            row[places[inside]] = values[inside]
            yield series.metric, row


def decode_points(body: bytes, names: tuple[str, ...], told: Told) -> Iterator[tuple[Labels, list[Point]]]:
    """The series of a range vector, each with its samples as they were stored."""
    for part in _slices(body, told, *_decoders(RangeSeries, names)):
        for series in part:
            yield series.metric, series.values


def decode_names(body: bytes, told: Told) -> list[str]:
    """The names in an answer to a question for them."""
    answer: Names = _understood(lambda: msgspec.json.decode(body, type=Names))
    if answer.status != "success":
        raise MetricsUnavailable(f"the metric source refused: {answer.error or answer.status}")
    if answer.lacks:
        told(answer.lacks)
    return answer.data


def _slices(
    body: bytes, told: Told, part: "msgspec.json.Decoder[Any]", whole: "msgspec.json.Decoder[Any]"
) -> Iterator[list[Any]]:
    head = body.find(b'"result":[') + len(b'"result":[')
    start = head
    while (cut := body.find(_BETWEEN, start + _SLICE)) >= 0:
        piece = b"[" + body[start : cut + 1] + b"]"
        yield _understood(lambda piece=piece: part.decode(piece))  # type: ignore[misc]
        start = cut + 2
    last = body if start == head else body[:head] + body[start:]
    answer = _understood(lambda: whole.decode(last))
    if answer.status != "success" or answer.data is None:
        raise MetricsUnavailable(f"the metric source refused: {answer.error or answer.status}")
    if answer.lacks:
        told(answer.lacks)
    yield answer.data.result


def as_number(text: str) -> float:
    """A sample's value."""
    return _numbers([text])[0]


def _numbers(texts: list[str]) -> list[float]:
    numbers: list[float] = _understood(lambda: [float(text) for text in texts])
    return numbers


def _understood(decode: Callable[[], Any]) -> Any:
    try:
        return decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise MetricsUnavailable(f"the metric source answered something else than asked: {error}") from None
