"""The audit log: one structured event `audit` for every change, sign-in, and refused login or operation.

It is written whatever `log.level` is. Repetitions are counted, so that neither a job that reports its training
every second, nor an assistant that calls tools, nor a caller that tries wrong tokens fills the log: the first is written at once, the others as one
event with their `count` when the interval is over.
"""

import asyncio
import re
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from typing import Literal

from starlette.types import Scope

from gpufleet.runtime.logs import get_audit_logger
from gpufleet.server.auth.gate import MCP, SAFE_METHODS, is_training_report
from gpufleet.server.auth.permissions import LoginRefused
from gpufleet.server.http.request_context import RequestContext

REFUSED_SECONDS = 60.0
ROUTINE_SECONDS = 3600.0
_MAX_OPEN = 1024
_MAX_TEXT = 300
_TOKEN = re.compile(r"(gpf_|gpw_|eyJ)[\w.~+/=-]+")

Outcome = Literal["allowed", "refused", "failed"]


@dataclass(frozen=True)
class AuditEvent:
    """The fields of an event, besides the time and the trace id."""

    who: str | None
    """The name of the caller; None if it is not known."""
    login: str | None
    """How the caller logged in."""
    action: str
    """The method and the template of the path, or `sign in`."""
    target: str
    """The path."""
    address: str
    """The client's address."""
    outcome: Outcome
    status: int
    reason: str
    """Why it was refused or failed."""


@dataclass
class _Repeated:
    event: AuditEvent
    timer: asyncio.TimerHandle
    count: int = 0


class AuditLog:
    """Writes events, repetitions together."""

    def __init__(self) -> None:
        self._log = get_audit_logger()
        self._repeated: dict[Hashable, _Repeated] = {}

    def request(self, scope: Scope, context: RequestContext, route: str) -> None:
        """Write the event of a request that has been answered, if it has one."""
        refused, method, path = context.login_error is not None, scope["method"], scope["path"]
        if not refused and not context.signed_in and method in SAFE_METHODS:
            return
        event = _event(scope, context, route)
        if (is_training_report(method, path) or path == MCP) and not refused:
            self._write_repeated((event.who, event.target, event.status), event, ROUTINE_SECONDS)
        elif event.outcome == "refused":
            repetition = (event.who, event.address, event.status, event.reason)
            self._write_repeated(repetition, event, REFUSED_SECONDS)
        else:
            self._write(event)

    def close(self) -> None:
        """Write the repetitions that wait for the end of their interval."""
        for key in list(self._repeated):
            self._flush(key)

    def _write_repeated(self, key: Hashable, event: AuditEvent, seconds: float) -> None:
        if (repeated := self._repeated.get(key)) is not None:
            repeated.count += 1
            return
        self._write(event)
        timer = asyncio.get_running_loop().call_later(seconds, self._flush, key)
        self._repeated[key] = _Repeated(event, timer)
        if len(self._repeated) > _MAX_OPEN:
            self._flush(next(iter(self._repeated)))

    def _flush(self, key: Hashable) -> None:
        repeated = self._repeated.pop(key)
        repeated.timer.cancel()
        if repeated.count:
            self._write(repeated.event, repeated.count)

    def _write(self, event: AuditEvent, count: int = 1) -> None:
        write = self._log.info if event.outcome == "allowed" else self._log.warning
        write("audit", **asdict(event), count=count)


def _event(scope: Scope, context: RequestContext, route: str) -> AuditEvent:
    caller, error = context.caller, context.login_error
    outcome: Outcome = "allowed" if context.status < 400 else "failed"
    if error is not None or context.status in (401, 403):
        outcome = "refused"
    who = caller.name if caller else None
    if isinstance(error, LoginRefused) and error.who:
        who = error.who
    return AuditEvent(
        who=who,
        login=caller.login if caller else None,
        action="sign in" if context.signed_in else f"{scope['method']} {route}",
        target=_TOKEN.sub("[token]", scope["path"])[:_MAX_TEXT],
        address=context.peer,
        outcome=outcome,
        status=context.status,
        reason=_TOKEN.sub("[token]", error.detail if error is not None else context.problem)[:_MAX_TEXT],
    )
