"""What goes wrong, turned into a status and a sentence for the caller.

The tree of `gpufleet.errors` and the framework's own exceptions meet here, in one function,
so that every layer answers alike. A fault of ours is logged with its traceback and told to
the caller without any: the trace id connects the two.
"""

import asyncio
from dataclasses import dataclass

from litestar.exceptions import HTTPException

from gpufleet.errors import GpufleetError, InvalidRequest, NotFound, OperationRefused, Unavailable
from gpufleet.runtime.logs import get_logger

_log = get_logger("api")

_RETRY = ((b"retry-after", b"1"),)
_SENTENCES = {
    404: "there is nothing at this path; /docs lists what there is",
    405: "this path does not take that method; the Allow header says which it takes",
}


@dataclass(frozen=True)
class Problem(Exception):
    """An error answer: its status, its sentence and what it adds to the headers."""

    status: int
    sentence: str
    headers: tuple[tuple[bytes, bytes], ...] = ()


def problem_of(error: BaseException) -> Problem:
    """The answer that `error` becomes; one that nobody foresaw is logged and becomes a bare 500."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, InvalidRequest):
        return Problem(400, str(error))
    if isinstance(error, NotFound):
        return Problem(404, str(error))
    if isinstance(error, OperationRefused):
        return Problem(409, str(error))
    if isinstance(error, Unavailable):
        return Problem(503, str(error), ((b"retry-after", b"5"),))
    if isinstance(error, asyncio.TimeoutError):
        return Problem(503, "it took too long and was given up; ask for less or try again", _RETRY)
    if isinstance(error, asyncio.CancelledError):
        return Problem(503, "the server is shutting down; try again", _RETRY)
    if isinstance(error, HTTPException) and error.status_code < 500:
        return _from_the_framework(error)
    if isinstance(error, GpufleetError):
        # Somebody whom we asked said no (Kubernetes: "pods is forbidden"); the words help, a traceback doesn't.
        _log.error("request failed", reason=str(error))
        return Problem(500, str(error))
    _log.error("request failed", exc_info=error)
    return Problem(500, "something went wrong here; the log has the details under this trace id")


def _from_the_framework(error: HTTPException) -> Problem:
    headers = tuple((name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items())
    return Problem(error.status_code, _SENTENCES.get(error.status_code, error.detail), headers)
