"""Retries and errors of a request, without sending anything.

`exchange` is a generator: it yields the seconds to wait before each attempt and gets the result of the attempt. The
sync and the async client both run it, so that they behave the same.
"""

import json
import random
from collections.abc import Generator

import httpx

from gpufleet.client.errors import ApiError, LoginRequired, ServerUnreachable
from gpufleet.errors import connection_problem

RETRIED = frozenset({429, 502, 503, 504})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 20.0

Outcome = httpx.Response | httpx.TransportError
Exchange = Generator[float, Outcome, httpx.Response]


def exchange(address: str, retries: int) -> Exchange:
    """Yield the pause before each attempt, get its outcome, and return the successful response."""
    outcome = yield 0.0
    for attempt in range(retries):
        if not _may_pass(outcome):
            break
        outcome = yield _pause(attempt, outcome)
    if isinstance(outcome, httpx.TransportError):
        raise ServerUnreachable(f"no answer from {address}: {problem_of(outcome)}") from outcome
    if outcome.is_success:
        return outcome
    raise _error(address, outcome)


def _may_pass(outcome: Outcome) -> bool:
    if isinstance(outcome, httpx.Response):
        return outcome.status_code in RETRIED
    return not isinstance(outcome, httpx.UnsupportedProtocol)


def _pause(attempt: int, outcome: Outcome) -> float:
    """Return an exponential backoff with jitter, or what the server asks for if that is longer."""
    backoff = _FIRST_PAUSE * 2.0**attempt * random.uniform(0.5, 1.0)  # noqa: S311  (not a secret)
    asked: str = outcome.headers.get("retry-after", "") if isinstance(outcome, httpx.Response) else ""
    return min(max(backoff, float(asked) if asked.isdecimal() else 0.0), _LONGEST_PAUSE)


def problem_of(error: httpx.TransportError) -> str:
    """Return why a request failed, in a few words."""
    if isinstance(error, httpx.TimeoutException):
        return "it took too long"
    cause: BaseException = error
    while cause.__cause__ or cause.__context__:
        cause = cause.__cause__ or cause.__context__ or cause
    return connection_problem(cause if isinstance(cause, OSError) else error)


def _error(address: str, response: httpx.Response) -> ApiError | ServerUnreachable:
    status, trace = response.status_code, response.headers.get("x-trace-id", "")
    message = _message(response)
    if status in (401, 403):
        return LoginRequired(message, status, trace)
    if response.is_redirect:
        target = response.headers.get("location", "")
        return ApiError(f"{address} redirects to {target}; use that address", status, trace)
    if status in RETRIED:
        return ServerUnreachable(f"{address} is not available: {message}")
    return ApiError(message, status, trace)


def _message(response: httpx.Response) -> str:
    """Return the message of any of the envelopes, else the status."""
    try:
        body = json.loads(response.content)
    except ValueError:
        body = None
    if isinstance(body, dict):
        for key in ("error", "message"):
            if isinstance(body.get(key), str) and body[key]:
                return str(body[key])
    return f"status {response.status_code} {response.reason_phrase}".rstrip()
