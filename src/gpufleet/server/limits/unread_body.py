"""End a connection whose request body the application did not read to its end.

uvicorn would read and discard such a body without limit, for example after a 401. This middleware announces
`Connection: close` instead. It reads a little more after the response was sent: closing a socket with unread
bytes resets the connection, and a client that is still sending might not see the response.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LINGER_SECONDS = 1.0
LINGER_BYTES = 1024 * 1024


class UnreadBodyMiddleware:
    """The outermost middleware: a request that is being refused must not count as one in progress."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; pass on those without a body."""
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        is_read = is_closing = False
        held: Message | None = None

        async def tracked_receive() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = is_read or not message.get("more_body", False)
            return message

        async def closing_send(message: Message) -> None:
            nonlocal is_closing, held
            if message["type"] == "http.response.start" and not is_read:
                is_closing = True
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            elif is_closing and not message.get("more_body", False):
                held = {"type": "http.response.body", "body": b"", "more_body": False}
                message = {**message, "more_body": True}
            await send(message)

        await self._app(scope, tracked_receive, closing_send)
        if held is not None:
            if not is_read:
                await _discard(receive)
            await send(held)


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in scope["headers"]
    )


async def _discard(receive: Receive) -> None:
    """Read the rest of a body, within limits."""
    size = 0
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            while size < LINGER_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return
    except TimeoutError:
        return
