"""The errors of the client; each message says what happened and what to do."""

from gpufleet.errors import GpufleetError, Unavailable


class ApiError(GpufleetError):
    """The server refused the request."""

    def __init__(self, message: str, status: int, trace_id: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.trace_id = trace_id
        """Find the request in the server's log with it."""


class LoginRequired(ApiError):
    """The server needs a token (401) or does not allow this one (403)."""


class ServerUnreachable(Unavailable):
    """The server does not answer, or only with errors that may pass."""
