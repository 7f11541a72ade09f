"""Structured logs: an event name and its fields, one line each, on standard error.

`console` is for people at a terminal, `json` for collectors. Both carry the trace id of
the request in hand, which lives in a context variable and so follows a task wherever it
goes. Lines of libraries that use the standard `logging` take the same way out.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from types import ModuleType
from typing import Any, TextIO, cast

import msgspec

# structlog imports rich for its tracebacks where it finds it, and Litestar brings it along: 0.2 s at the start of
# every command and memory on every node, for tracebacks that are printed plainly all the same.
_modules = cast("dict[str, ModuleType | None]", sys.modules)
_rich = _modules.setdefault("rich", None)
import structlog  # noqa: E402
from structlog.typing import EventDict, FilteringBoundLogger, Processor  # noqa: E402

if _rich is None:
    del _modules["rich"]

trace_id: ContextVar[str] = ContextVar("trace_id", default="")


def get_logger(name: str) -> FilteringBoundLogger:
    """A logger whose lines say which part of the program speaks."""
    return cast(FilteringBoundLogger, structlog.get_logger(part=name))


def configure_logs(level: str, style: str) -> None:
    """Send every log line of this process to standard error in one `style` (json or console)."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        _Stamp(),
        _add_trace_id,
        structlog.processors.format_exc_info,
    ]
    renderer: Processor = (
        structlog.processors.JSONRenderer(_to_json)
        if style == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: _Lines(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_the_library],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)


class Complaints:
    """Warnings about what is tried again and again: told once, when they change, and then at growing intervals."""

    FIRST, MOST = 30.0, 3600.0
    _REMEMBERED = 4096

    def __init__(self, log: FilteringBoundLogger, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._monotonic = monotonic
        self._told: dict[str, tuple[dict[str, Any], float, float]] = {}

    def warn(self, about: str, event: str, **fields: Any) -> None:
        """Something is wrong with `about`, now or still."""
        now, said = self._monotonic(), {"event": event, **fields}
        before, due, wait = self._told.pop(about, (None, now, 0.0))
        if said != before:
            due, wait = now, self.FIRST / 2
        if now >= due:
            wait = min(2 * wait, self.MOST)
            due = now + wait
            self._log.warning(**said)
        self._told[about] = said, due, wait
        if len(self._told) > self._REMEMBERED:
            del self._told[next(iter(self._told))]

    def over(self, about: str) -> None:
        """It is well again: the next complaint is news."""
        self._told.pop(about, None)


class _Stamp:
    """Adds the time. Only its fraction is written anew within one second: this runs for every request."""

    def __init__(self) -> None:
        self._second = -1
        self._text = ""

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        now = time.time()
        second = int(now)
        if second != self._second:
            self._second, self._text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        event["timestamp"] = f"{self._text}.{int((now - second) * 1e6):06}Z"
        return event


class _Lines:
    """Writes each line in one piece, so that lines of several threads don't mix."""

    def __init__(self, out: TextIO) -> None:
        self._write = out.write
        self._flush = out.flush

    def msg(self, line: str) -> None:
        # A full disk or a reader that went away costs the line, and never the work that it tells of.
        with suppress(OSError, ValueError):
            self._write(line + "\n")
            self._flush()

    debug = info = warning = error = critical = fatal = exception = log = msg


def _to_json(event: EventDict, **_options: Any) -> str:
    # A quarter of the time of the standard library's encoder, on every request.
    try:
        return msgspec.json.encode(event, enc_hook=repr).decode()
    except UnicodeEncodeError:  # a file's name, for one, that is no UTF-8
        return json.dumps(event, default=repr)


def _add_trace_id(_logger: Any, _method: str, event: EventDict) -> EventDict:
    if current := trace_id.get():
        event["trace_id"] = current
    return event


def _name_the_library(_logger: Any, _method: str, event: EventDict) -> EventDict:
    record = event.get("_record")
    if record is not None:
        event["part"] = record.name
    return event
