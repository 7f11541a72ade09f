"""Structured logs: an event name and its fields, one line each, on standard error.

The `console` style is for terminals, `json` for log collectors. Both carry the trace id of the current
request, which lives in a context variable and therefore follows it into tasks. Log records of libraries
that use the standard `logging` module are written in the same style.
"""

import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor

trace_id: ContextVar[str] = ContextVar("trace_id", default="")


def get_logger(component: str) -> FilteringBoundLogger:
    """Return a logger that adds the name of a component to its lines."""
    return cast(FilteringBoundLogger, structlog.get_logger(component=component))


def get_audit_logger() -> FilteringBoundLogger:
    """Return the logger of the audit log, which writes all its lines whatever the configured level is."""
    unfiltered = structlog.make_filtering_bound_logger(logging.NOTSET)
    return cast(
        FilteringBoundLogger, structlog.wrap_logger(None, wrapper_class=unfiltered, component="audit")
    )


def configure_logs(level: str, style: str) -> None:
    """Write every log line of this process to standard error in one `style` (json or console)."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace_id,
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer(separators=(",", ":"))
        if style == "json"
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: _LineWriter(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _add_library_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)


class RepeatedWarnings:
    """Logs a warning that recurs when it is new, when it changes, and then at growing intervals."""

    FIRST_INTERVAL, MAX_INTERVAL = 30.0, 3600.0
    _MAX_KEYS = 4096

    def __init__(self, log: FilteringBoundLogger, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._monotonic = monotonic
        self._logged: dict[str, tuple[dict[str, Any], float, float]] = {}

    def warn(self, key: str, event: str, **fields: Any) -> None:
        """Log the problem that `key` has, unless it was logged recently."""
        now, line = self._monotonic(), {"event": event, **fields}
        last, due, interval = self._logged.pop(key, (None, now, 0.0))
        if line != last:
            due, interval = now, self.FIRST_INTERVAL / 2
        if now >= due:
            interval = min(2 * interval, self.MAX_INTERVAL)
            due = now + interval
            self._log.warning(**line)
        self._logged[key] = line, due, interval
        if len(self._logged) > self._MAX_KEYS:
            del self._logged[next(iter(self._logged))]

    def clear(self, key: str) -> None:
        """Forget the problem of `key`, so that its next warning is logged."""
        self._logged.pop(key, None)


class _LineWriter:
    """Writes each line with one call, so that the lines of several threads don't mix."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def msg(self, line: str) -> None:
        # A full disk or a closed pipe loses the line; it must not stop the code that logs.
        with suppress(OSError, ValueError):
            self._out.write(line + "\n")
            self._out.flush()

    debug = info = warning = error = critical = fatal = exception = log = msg


def _add_trace_id(_logger: Any, _method: str, event: EventDict) -> EventDict:
    if current := trace_id.get():
        event["trace_id"] = current
    return event


def _add_library_name(_logger: Any, _method: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if record is not None:
        event["component"] = record.name
    return event
