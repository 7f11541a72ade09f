"""Decode Prometheus responses into structs with only the needed labels, a slice at a time.

Decoding 100,000 series in one C call holds the interpreter lock for a tenth of a second, whichever
thread does it, and every request waits. So a long response is cut between its series. The cut is safe
without a parser: in JSON a quote inside a string is always escaped, so `},{"metric":` occurs only
between two series. All slices but the last are lists of series. The last is appended to the head of
the response and decoded as a whole response, which reveals its status, an error or a truncated tail.
Slices, and so the values that are decoded at a time, have a maximum size, and a response a maximum number
of series: a few bytes of JSON may take hundreds of bytes of memory.

A server that queries several stores returns partial responses when one of them is down, and says so:
Thanos (and Prometheus with remote read) in `warnings`, a VictoriaMetrics cluster in `isPartial`. The
decoders report this to `on_partial`. Prometheus also puts remarks on the expression into `warnings`;
they begin with `PromQL` and say nothing about the data.
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
"""A frozen struct with one attribute per requested label, defined at run time."""

_BETWEEN = b'},{"metric":'
_SLICE = 256 * 1024
_MAX_SLICE = 4 * 1024 * 1024
"""Largest piece that is decoded at once; a range of one series has up to 11,000 points in 0.4 MB."""
_MAX_SERIES = 800_000
_MAX_NAMES_BYTES = 8 * 1024 * 1024
_PROMQL_REMARK = re.compile(r"PromQL (info|warning)\b|\d+ more (info|warning) annotations omitted$")
_MAX_WARNING = 300
_TOLERANCE = 0.002
"""Seconds by which the times of a response may differ from the requested ones, as both are rounded."""
OnPartial = Callable[[str], None]
"""Called with the reason why a response may be partial."""
T = TypeVar("T")


class MisalignedRange(MetricsUnavailable):
    """A range response has other times than requested."""


class Point(Struct, array_like=True, gc=False):
    """A time and a value. `gc=False` saves the garbage collector long pauses."""

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
    """The status that comes with every result."""

    status: str
    error: str = ""
    warnings: list[str] | None = None
    is_partial: bool = msgspec.field(name="isPartial", default=False)

    @property
    def partial_reason(self) -> str:
        """Why the result may be partial; empty if it is complete."""
        for warning in self.warnings or ():
            if not _PROMQL_REMARK.match(warning):
                return warning[:_MAX_WARNING]
        return "not all of its stores answered" if self.is_partial else ""


class Names(ResponseStatus, kw_only=True):
    """The response to a query for names."""

    data: list[str] = []


class Data(Struct, Generic[T]):
    """The result of a query."""

    result: list[T] = []


class Response(ResponseStatus, Generic[T], kw_only=True):
    """The response to a query."""

    data: Data[T] | None = None


@lru_cache(maxsize=256)
def labels_type(names: tuple[str, ...]) -> type[Struct]:
    """Return a hashable struct type of these labels, empty by default. `__name__` becomes `metric_name`."""
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
    return msgspec.json.Decoder(list[series]), msgspec.json.Decoder(Response[series])


def decode_instant(body: bytes, names: tuple[str, ...], on_partial: OnPartial) -> tuple[list[Labels], Column]:
    """Return the label sets and values of an instant query."""
    labels: list[Labels] = []
    values: list[float] = []
    for part in _slices(body, on_partial, *_decoders(Instant, names)):
        labels.extend([series.metric for series in part])
        if len(labels) > _MAX_SERIES:
            raise MetricsUnavailable(f"the metric source returned more than {_MAX_SERIES} series")
        values.extend(_numbers([series.value.value for series in part]))
    return labels, np.array(values, dtype=np.float64)


def decode_range(
    body: bytes, names: tuple[str, ...], start: float, step: float, points: int, on_partial: OnPartial
) -> Iterator[tuple[Labels, Column]]:
    """Yield the series of a range query on the grid start, start + step, …; NaN for a gap."""
    for part in _slices(body, on_partial, *_decoders(RangeSeries, names)):
        for series in part:
            row = np.full(points, np.nan)
            times = np.array([point.time for point in series.values], dtype=np.float64)
            values = np.array(_numbers([point.value for point in series.values]), dtype=np.float64)
            places = np.rint((times - start) / step).astype(np.int64)
            inside = (places >= 0) & (places < points)
            if (np.abs(times - start - places * step)[inside] > _TOLERANCE).any():
                raise MisalignedRange("the metric source returned a range for other times than requested")
            row[places[inside]] = values[inside]
            yield series.metric, row


def decode_points(
    body: bytes, names: tuple[str, ...], on_partial: OnPartial
) -> Iterator[tuple[Labels, list[Point]]]:
    """Yield the series of a range vector with their stored samples."""
    for part in _slices(body, on_partial, *_decoders(RangeSeries, names)):
        for series in part:
            yield series.metric, series.values


def decode_names(body: bytes, on_partial: OnPartial) -> list[str]:
    """Return the names of a label values response."""
    _check_size(body, _MAX_NAMES_BYTES)
    response: Names = _decoded(lambda: msgspec.json.decode(body, type=Names))
    if response.status != "success":
        raise MetricsUnavailable(f"the metric source refused: {response.error or response.status}")
    if response.partial_reason:
        on_partial(response.partial_reason)
    return response.data


def _slices(
    body: bytes, on_partial: OnPartial, part: "msgspec.json.Decoder[Any]", whole: "msgspec.json.Decoder[Any]"
) -> Iterator[list[Any]]:
    head = body.find(b'"result":[') + len(b'"result":[')
    start = head
    while (cut := body.find(_BETWEEN, start + _SLICE)) >= 0:
        _check_size(body[start:cut], _MAX_SLICE)
        chunk = b"[" + body[start : cut + 1] + b"]"
        yield _decoded(lambda chunk=chunk: part.decode(chunk))  # type: ignore[misc]
        start = cut + 2
    last = body if start == head else body[:head] + body[start:]
    _check_size(last, _MAX_SLICE)
    response = _decoded(lambda: whole.decode(last))
    if response.status != "success" or response.data is None:
        raise MetricsUnavailable(f"the metric source refused: {response.error or response.status}")
    if response.partial_reason:
        on_partial(response.partial_reason)
    yield response.data.result


def _check_size(part: bytes, limit: int) -> None:
    if len(part) > limit:
        raise MetricsUnavailable(
            f"the metric source returned {len(part)} bytes in one piece, at most {limit} are read"
        )


def as_number(text: str) -> float:
    """Parse the value of a sample."""
    return _numbers([text])[0]


def _numbers(texts: list[str]) -> list[float]:
    numbers: list[float] = _decoded(lambda: [float(text) for text in texts])
    return numbers


def _decoded(decode: Callable[[], Any]) -> Any:
    try:
        return decode()
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise MetricsUnavailable(f"the metric source returned an invalid response: {error}") from None
