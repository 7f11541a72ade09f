"""Where the time goes: samples of every thread's stack, in pprof's format.

A thread looks at all stacks a hundred times a second through `sys._current_frames`, which costs
the others nothing but the lock. The result is pprof's protobuf, written by hand: it takes six
small messages, for which a protobuf library and generated code would be the larger part.
`go tool pprof` and speedscope open it.
"""

import gzip
import sys
import threading
import time
from collections import Counter
from types import CodeType, FrameType
from typing import Any

HERTZ = 100
_DEEPEST = 128

Stack = tuple[tuple[CodeType, int], ...]


def sample_stacks(seconds: float) -> Counter[Stack]:
    """Look at the stacks of all other threads for `seconds`; blocks, so run it in a thread."""
    own = threading.get_ident()
    seen: Counter[Stack] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for thread, frame in sys._current_frames().items():
            if thread != own:
                seen[_stack(frame)] += 1
        time.sleep(1 / HERTZ)
    return seen


def profile(seconds: float) -> bytes:
    """A profile of the next `seconds`, gzipped."""
    started = time.time_ns()
    seen = sample_stacks(seconds)
    return gzip.compress(encode(seen, started, time.time_ns() - started), mtime=0)


def encode(seen: "Counter[Stack]", started_ns: int, duration_ns: int) -> bytes:
    """The samples as pprof's `Profile` message."""
    table = _Table()
    period = 1_000_000_000 // HERTZ
    samples = [
        _message(
            2, _packed(1, [table.location(*line) for line in stack]), _packed(2, [count, count * period])
        )
        for stack, count in seen.items()
    ]
    kinds = [_value_type(1, table, "samples", "count"), _value_type(1, table, "wall", "nanoseconds")]
    period_type = _value_type(11, table, "wall", "nanoseconds")
    return b"".join(
        [
            *kinds,
            *samples,
            *table.locations,
            *table.functions,
            *(_bytes(6, text.encode()) for text in table.texts),
            _number(9, started_ns),
            _number(10, duration_ns),
            period_type,
            _number(12, period),
        ]
    )


def _stack(frame: FrameType | None) -> Stack:
    """Leaf first, as pprof wants it."""
    lines: list[tuple[CodeType, int]] = []
    while frame is not None and len(lines) < _DEEPEST:
        lines.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(lines)


class _Table:
    """Texts, functions and places, each told once and named by its number."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {"": 0}
        self.functions: list[bytes] = []
        self.locations: list[bytes] = []
        self._function_ids: dict[CodeType, int] = {}
        self._location_ids: dict[tuple[CodeType, int], int] = {}

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def location(self, code: CodeType, line: int) -> int:
        known = self._location_ids.get((code, line))
        if known is None:
            known = self._location_ids[code, line] = len(self.locations) + 1
            spot = _message(4, _number(1, self._function(code)), _number(2, line))
            self.locations.append(_message(4, _number(1, known), spot))
        return known

    def _function(self, code: CodeType) -> int:
        known = self._function_ids.get(code)
        if known is None:
            known = self._function_ids[code] = len(self.functions) + 1
            name = self.text(code.co_qualname)
            file = self.text(code.co_filename)
            fields = (known, name, name, file, code.co_firstlineno)
            self.functions.append(_message(5, *(_number(n, value) for n, value in enumerate(fields, 1))))
        return known


def _value_type(field: int, table: _Table, kind: str, unit: str) -> bytes:
    return _message(field, _number(1, table.text(kind)), _number(2, table.text(unit)))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _message(field: int, *parts: bytes) -> bytes:
    return _bytes(field, b"".join(parts))


def _packed(field: int, values: list[Any]) -> bytes:
    return _bytes(field, b"".join(map(_varint, values)))
