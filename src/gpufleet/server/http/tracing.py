"""Trace ids: taken from a valid W3C `traceparent` header, else made.

The id is in two response headers (`x-trace-id`, and `traceresponse` in W3C's form), in the body of the
clusters envelope and, through `gpufleet.runtime.logs.trace_id`, on every log line of the request.
"""

import random
import re
from collections.abc import Callable

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)
_ZERO_SPAN = b"0" * 16
_random_bits = random.Random().getrandbits  # noqa: S311  (a trace id is not a secret)


def trace_id_from(traceparent: bytes | None, random_bits: Callable[[int], int] = _random_bits) -> str:
    """Return the trace id in `traceparent`, or a new one if it has no valid one."""
    if traceparent is not None and (match := _TRACEPARENT.fullmatch(traceparent)):
        version, trace, span, rest = match.groups()
        valid_version = version != b"ff" and (version != b"00" or rest is None)
        if valid_version and trace.strip(b"0") and span.strip(b"0"):
            return trace.decode()
    return f"{random_bits(128):032x}"


def trace_headers(trace: str) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """Return the response headers for `trace`, with its first half as this request's span id."""
    encoded = trace.encode()
    span = encoded[:16] if encoded[:16] != _ZERO_SPAN else encoded[16:]
    return (b"x-trace-id", encoded), (b"traceresponse", b"00-%b-%b-00" % (encoded, span))
