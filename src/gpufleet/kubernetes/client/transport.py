"""Send HTTP requests to the API server: rate limit, credentials, TLS, timeout, errors and retries.

What is retried:

- always, if the server has done nothing: no connection, 429, or 503 with Retry-After;
- only repeatable requests, after any other 5xx, a broken connection or a timeout;
- once, after a 401 or a certificate error, if there are newer credentials.

Waits grow exponentially with jitter; a Retry-After is honoured up to `max_wait`. The last error
is raised. `Unanswered` means that a write may have been done.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict
from yarl import URL

import gpufleet
from gpufleet.errors import GpufleetError, connection_problem
from gpufleet.kubernetes.client.connection import Connection
from gpufleet.kubernetes.client.credentials import Credentials, Identity
from gpufleet.kubernetes.client.errors import (
    ServerFault,
    TooLarge,
    TooManyRequests,
    Unanswered,
    Unauthorized,
    Unreachable,
    error_from_response,
)
from gpufleet.kubernetes.client.timing import Backoff, RateLimiter, Timing
from gpufleet.kubernetes.client.tls import TlsIdentity
from gpufleet.runtime.response_body import BodyReader

MAX_RESPONSE_BYTES = 64 << 20
"""Bytes of responses in memory at a time; a larger page of a list is requested again in smaller pages."""
_MAX_ERROR_BYTES = 1 << 20
_BUFFER = 256 << 10
"""Bytes read at a time; they are decoded in one step of the event loop."""
_BACKOFF = Backoff(initial=0.2, maximum=5.0)


@dataclass(frozen=True)
class Retries:
    """How often a request is sent at most, and how long to wait in between."""

    attempts: int = 5
    backoff: Backoff = _BACKOFF
    max_wait: float = 30.0


@dataclass(frozen=True)
class Request:
    """A request; `repeatable` means that sending it twice has the same effect as once."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"
    repeatable: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Transport:
    """Sends requests to one API server with one identity."""

    def __init__(
        self,
        connection: Connection,
        *,
        limiter: RateLimiter,
        timeout: float,
        retries: Retries,
        timing: Timing,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> None:
        self.connection = connection
        self.timing = timing
        self._limiter = limiter
        self._timeout = timeout
        self._retries = retries
        self._credentials = Credentials(connection, timing)
        self._tls = TlsIdentity(connection, timing)
        self._session: aiohttp.ClientSession | None = None
        self._bodies = BodyReader(max_response_bytes, TooLarge)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, request: Request) -> bytes:
        """Send the request, with retries, and return the body of the response."""
        failures = 0
        while True:
            try:
                return await self._send_once(request)
            except (Unreachable, Unanswered, TooManyRequests, ServerFault) as error:
                failures += 1
                wait = self._wait_before_retry(request, error, failures)
                if wait is None:
                    raise
                await self.timing.sleep(wait)

    @asynccontextmanager
    async def stream(self, request: Request, idle: float) -> AsyncIterator[aiohttp.StreamReader]:
        """Stream the body of the response, without retries; silence of more than `idle` seconds is `Unanswered`."""
        async with self._opened(request, aiohttp.ClientTimeout(total=None, sock_read=idle)) as response:
            yield response.content

    async def _send_once(self, request: Request) -> bytes:
        async with self._opened(request, aiohttp.ClientTimeout(total=self._timeout)) as response:
            return bytes(await self._bodies.read(response))

    def _wait_before_retry(self, request: Request, error: GpufleetError, failures: int) -> float | None:
        if failures >= self._retries.attempts:
            return None
        retry_after = error.retry_after if isinstance(error, TooManyRequests | ServerFault) else None
        not_done = isinstance(error, Unreachable | TooManyRequests) or (
            isinstance(error, ServerFault) and error.status.code == 503 and retry_after is not None
        )
        if not not_done and not request.repeatable:
            return None
        wait = self._retries.backoff.delay(failures, self.timing.random())
        if retry_after is None:
            return wait
        return None if retry_after > self._retries.max_wait else max(wait, retry_after)

    @asynccontextmanager
    async def _opened(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        responded = False
        try:
            response = await self._respond(request, limits)
            responded = True
            async with response:
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise Unreachable(
                f"{request}: the server's certificate is not trusted: {error.certificate_error}"
            ) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(
                f"{request}: no connection to {self.connection.server}: {connection_problem(error)}"
            ) from None
        except TimeoutError:
            problem = "stopped responding" if responded else f"did not respond in {self._timeout:g} s"
            raise Unanswered(f"{request}: {self.connection.server} {problem}") from None
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Unanswered(f"{request}: the connection broke: {connection_problem(error)}") from None

    async def _respond(self, request: Request, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        await self._limiter.acquire()
        identity = await self._credentials.identity()
        tls = self._tls.context(identity.certificate)
        try:
            return await self._try(request, limits, identity, tls)
        except Unauthorized:
            newer = await self._credentials.refresh(identity)
            newer_tls = self._tls.context(newer.certificate, now=True)
            # Compare with what this request sent: another request may have fetched the newer ones already.
            if newer == identity and newer_tls is tls:
                raise
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError):
            newer = await self._credentials.identity()
            newer_tls = self._tls.context(newer.certificate, now=True)
            if newer_tls is tls:
                raise
        await self._limiter.acquire()
        return await self._try(request, limits, newer, newer_tls)

    async def _try(
        self,
        request: Request,
        limits: aiohttp.ClientTimeout,
        identity: Identity,
        tls: ssl.SSLContext | None,
    ) -> aiohttp.ClientResponse:
        headers: CIMultiDict[str] = CIMultiDict(Accept=request.accept)
        for name, value in identity.headers.items():
            for single in (value,) if isinstance(value, str) else value:
                headers.add(name, single)
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        # The headers have their own timeout: the body of a watch may take hours, its headers may not.
        async with asyncio.timeout(self._timeout):
            response = await self._open_session().request(
                request.method,
                URL(self.connection.server + request.path, encoded=True).with_query(request.query),
                data=request.body,
                headers=headers,
                timeout=limits,
                ssl=True if tls is None else tls,
                server_hostname=self.connection.tls_server_name or None,
                proxy=self.connection.proxy or None,
                allow_redirects=False,
            )
            if response.status < 300:
                return response
            async with response:
                try:
                    body = bytes(await self._bodies.read(response, _MAX_ERROR_BYTES))
                except TooLarge:
                    body = b""
        raise error_from_response(response.status, body, str(request), _retry_after(response))

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Inside a cluster, compression costs more than the bytes it saves.
            self._session = aiohttp.ClientSession(
                headers={"User-Agent": f"gpufleet/{gpufleet.__version__}", "Accept-Encoding": "identity"},
                read_bufsize=_BUFFER,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            # aiohttp resends PUT and DELETE after a broken connection. If the first one was done, the second
            # conflicts with it. There is no public option to turn that off.
            self._session._retry_connection = False
        return self._session


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None
