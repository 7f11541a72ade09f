"""The trace id of a request: the caller's, if its W3C `traceparent` is valid, else a new one.

It is in the first family's body, in two response headers of every family (`x-trace-id`, easy to
read, and `traceresponse`, W3C's form) and, through `gpufleet.runtime.logs.trace_id`, on every log line.
"""

import random
import re
from collections.abc import Callable

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)


_NO_SPAN = b"0" * 16
# Seeded by the operating system and then its own: a trace id is no secret, and every request needs one.
_random_bits = random.Random().getrandbits  # noqa: S311


def trace_id_from(traceparent: bytes | None, random_bits: Callable[[int], int] = _random_bits) -> str:
    """The trace id that a `traceparent` carries, or a new one where it carries none that is valid."""
    if traceparent is not None and (match := _TRACEPARENT.fullmatch(traceparent)):
        version, trace, span, rest = match.groups()
        known = version == b"00" and rest is None
        later = version not in (b"00", b"ff")
        if (known or later) and trace.strip(b"0") and span.strip(b"0"):
            return trace.decode()
    return f"{random_bits(128):032x}"


def trace_headers(trace: str) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """The response headers that carry `trace`; the request's own span is the first half of it."""
    whole = trace.encode()
    span = whole[:16] if whole[:16] != _NO_SPAN else whole[16:]
    return (b"x-trace-id", whole), (b"traceresponse", b"00-%b-%b-00" % (whole, span))
