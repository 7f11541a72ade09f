"""Sample the stacks of all threads and encode them in pprof's format.

`sys._current_frames` returns every thread's stack a hundred times a second, at the cost of holding the
GIL for a moment. pprof's protobuf needs six small messages, which are encoded here; a protobuf library and
generated code would be larger. `go tool pprof` and speedscope open the result.
"""

import gzip
import sys
import threading
import time
from collections import Counter
from types import CodeType, FrameType

HERTZ = 100
_MAX_DEPTH = 128

Line = tuple[CodeType, int]
Stack = tuple[Line, ...]


def profile(seconds: float) -> bytes:
    """Sample for `seconds` and return the gzipped profile. Blocks: call it in a thread."""
    started = time.time_ns()
    own, stacks = threading.get_ident(), Counter[Stack]()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stacks.update(_stack(frame) for thread, frame in sys._current_frames().items() if thread != own)
        time.sleep(1 / HERTZ)
    return gzip.compress(encode(stacks, started, time.time_ns() - started), mtime=0)


def encode(stacks: "Counter[Stack]", started_ns: int, duration_ns: int) -> bytes:
    """Encode samples as a `Profile` message of pprof's profile.proto."""
    strings: dict[str, int] = {"": 0}
    lines = {line: n for n, line in enumerate(dict.fromkeys(line for stack in stacks for line in stack), 1)}
    functions = {code: n for n, code in enumerate(dict.fromkeys(code for code, _ in lines), 1)}
    period = 1_000_000_000 // HERTZ

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    def value_type(field: int, kind: str, unit: str) -> bytes:
        return _message(field, _number(1, text(kind)), _number(2, text(unit)))

    parts = [value_type(1, "samples", "count"), value_type(1, "wall", "nanoseconds")]
    for stack, count in stacks.items():
        locations = _bytes(1, b"".join(_varint(lines[line]) for line in stack))
        parts.append(_message(2, locations, _bytes(2, _varint(count) + _varint(count * period))))
    for (code, number), n in lines.items():
        parts.append(_message(4, _number(1, n), _message(4, _number(1, functions[code]), _number(2, number))))
    for code, n in functions.items():
        name = text(code.co_qualname)
        fields = (n, name, name, text(code.co_filename), code.co_firstlineno)
        parts.append(_message(5, *(_number(field, value) for field, value in enumerate(fields, 1))))
    parts += [_number(9, started_ns), _number(10, duration_ns)]
    parts += [value_type(11, "wall", "nanoseconds"), _number(12, period)]
    return b"".join(parts + [_bytes(6, string.encode()) for string in strings])


def _stack(frame: FrameType | None) -> Stack:
    """Return the lines of a stack, leaf first, as pprof orders them."""
    lines: list[Line] = []
    while frame is not None and len(lines) < _MAX_DEPTH:
        lines.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(lines)


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
