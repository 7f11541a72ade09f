"""Turn exceptions into error responses.

Handlers raise the errors of `gpufleet.errors`, or Starlette's HTTPException for a status of their
own. Both become an error body in the envelope of the path. An unexpected exception is logged with
its traceback and answered without details; the trace id connects the two.
"""

import asyncio

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from gpufleet.errors import (
    GpufleetError,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    OperationRefused,
    Unavailable,
)
from gpufleet.runtime.logs import get_logger
from gpufleet.server.auth.scope import namespaces_of
from gpufleet.server.http.request_context import RequestContext, context_of

_log = get_logger("api")
_NO_DETAILS = "a dependency of the server failed; the log has the details under this trace id"
_STATUS = {LimitExceeded: 413, InvalidRequest: 400, NotFound: 404, OperationRefused: 409}


async def answer_error(request: Request, error: Exception) -> Response:
    """Answer an exception that Starlette caught."""
    if isinstance(error, HTTPException) and error.status_code == 404 and "route" not in request.scope:
        error = HTTPException(404, "no such path; /docs lists all paths")
    elif isinstance(error, HTTPException) and error.status_code == 405:
        allow = ", ".join(sorted(_allowed_methods(request)))
        error = HTTPException(405, f"this path allows only {allow}", {"allow": allow})
    return error_response(context_of(request.scope), error)


def error_response(context: RequestContext, error: BaseException) -> Response:
    """Return the response for `error`, in the envelope of the request's path."""
    problem = http_error(error)
    if namespaces_of(context.caller) is not None and _quotes_a_dependency(error):
        problem = HTTPException(problem.status_code, _NO_DETAILS, problem.headers)
    context.problem = problem.detail
    return Response(
        context.envelope.error(problem.status_code, problem.detail, context.trace),
        status_code=problem.status_code,
        headers={"cache-control": "no-store", **(problem.headers or {})},
        media_type="application/json",
    )


def _quotes_a_dependency(error: BaseException) -> bool:
    """Return whether the message may repeat what a dependency answered, such as names in other namespaces."""
    known = (InvalidRequest, NotFound, OperationRefused)
    return isinstance(error, GpufleetError) and not isinstance(error, known)


def http_error(error: BaseException) -> HTTPException:
    """Return the status, message and headers for `error`. Log unexpected errors."""
    if isinstance(error, HTTPException):
        return error
    for kind, status in _STATUS.items():
        if isinstance(error, kind):
            return HTTPException(status, str(error))
    if isinstance(error, Unavailable):
        return HTTPException(503, str(error), {"retry-after": "5"})
    if isinstance(error, asyncio.TimeoutError):
        return HTTPException(
            503, "the request took too long; ask for less or try again", {"retry-after": "1"}
        )
    if isinstance(error, asyncio.CancelledError):
        return HTTPException(503, "the server is shutting down; try again", {"retry-after": "1"})
    if isinstance(error, GpufleetError):
        # Kubernetes or another dependency refused ("pods is forbidden"): its message helps, a traceback does not.
        _log.error("request_failed", error=str(error))
        return HTTPException(500, str(error))
    _log.error("request_failed", exc_info=error)
    return HTTPException(500, "internal error; the log has the details under this trace id")


def _allowed_methods(request: Request) -> set[str]:
    """Return the methods of all routes at this path; Starlette names those of the first only."""
    methods: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            methods |= route.methods or set()
    return methods
