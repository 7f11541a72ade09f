"""One HTTP request to the API server, with everything around it that every request needs.

Rate, credentials, TLS, time limit, errors in our own words, and retries of what may be
retried:

- what never left us (no connection), and what the server turned away before doing anything
  (429, or 503 with Retry-After): always;
- any 5xx, a broken connection or silence: only if doing it twice is the same as once;
- 401 and a certificate error: once, if there are newer credentials.

Waits double with jitter; a Retry-After is honoured up to `longest_wait`. What is left is
raised: `Unanswered` tells a writer that its write may have been done.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

import gpufleet
from gpufleet.errors import GpufleetError, why_unreachable
from gpufleet.kubernetes.client.connection import Connection
from gpufleet.kubernetes.client.credentials import Credentials, Identity
from gpufleet.kubernetes.client.errors import (
    ServerFault,
    TooManyRequests,
    Unanswered,
    Unauthorized,
    Unreachable,
    error_of,
)
from gpufleet.kubernetes.client.timing import Backoff, RequestRate, Timing
from gpufleet.kubernetes.client.tls import TlsIdentity

_BUFFER = 1 << 20
_BACKOFF = Backoff(first=0.2, most=5.0)


@dataclass(frozen=True)
class Retries:
    """How often and how slowly a request is tried again."""

    tries: int = 5
    backoff: Backoff = _BACKOFF
    longest_wait: float = 30.0


@dataclass(frozen=True)
class Request:
    """A request; `repeatable` says that doing it twice is the same as doing it once."""

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
    """Sends requests to one API server as one identity."""

    def __init__(
        self,
        connection: Connection,
        *,
        rate: RequestRate,
        timeout: float,
        retries: Retries,
        timing: Timing,
    ) -> None:
        self.connection = connection
        self.timing = timing
        self._rate = rate
        self._timeout = timeout
        self._retries = retries
        self._credentials = Credentials(connection, timing)
        self._tls = TlsIdentity(connection, timing)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, request: Request) -> bytes:
        """The body of a successful answer; tries again where that is right."""
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
        """The body of an answer as it comes; silence of more than `idle` seconds is `Unanswered`. Not retried."""
        async with self._opened(request, aiohttp.ClientTimeout(total=None, sock_read=idle)) as response:
            yield response.content

    async def _send_once(self, request: Request) -> bytes:
        async with self._opened(request, aiohttp.ClientTimeout(total=self._timeout)) as response:
            return await response.read()

    def _wait_before_retry(self, request: Request, error: GpufleetError, failures: int) -> float | None:
        if failures >= self._retries.tries:
            return None
        asked = error.retry_after if isinstance(error, TooManyRequests | ServerFault) else None
        undone = isinstance(error, Unreachable | TooManyRequests) or (
            isinstance(error, ServerFault) and error.status.code == 503 and asked is not None
        )
        if not undone and not request.repeatable:
            return None
        wait = self._retries.backoff.delay(failures, self.timing.random())
        if asked is None:
            return wait
        return None if asked > self._retries.longest_wait else max(wait, asked)

    @asynccontextmanager
    async def _opened(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        answered = False
        try:
            response = await self._answer(request, limits)
            answered = True
            async with response:
                yield response
        except aiohttp.ClientConnectorCertificateError as error:
            raise Unreachable(
                f"{request}: the server's certificate is not trusted: {error.certificate_error}"
            ) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(
                f"{request}: no connection to {self.connection.server}: {why_unreachable(error)}"
            ) from None
        except TimeoutError:
            waited = "stopped answering" if answered else f"gave no answer in {self._timeout:g} s"
            raise Unanswered(f"{request}: {self.connection.server} {waited}") from None
        except (aiohttp.ClientError, ConnectionError) as error:
            raise Unanswered(f"{request}: the connection broke: {why_unreachable(error)}") from None

    async def _answer(self, request: Request, limits: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        await self._rate.acquire()
        shown = await self._credentials.identity()
        tls = self._tls.context(shown.certificate)
        try:
            return await self._try(request, limits, shown, tls)
        except Unauthorized:
            newer = await self._credentials.refused(shown)
            newer_tls = self._tls.context(newer.certificate, now=True)
            # Compared with what this request showed: another one may have fetched the newer ones meanwhile.
            if newer == shown and newer_tls is tls:
                raise
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError):
            newer = await self._credentials.identity()
            newer_tls = self._tls.context(newer.certificate, now=True)
            if newer_tls is tls:
                raise
        await self._rate.acquire()
        return await self._try(request, limits, newer, newer_tls)

    async def _try(
        self,
        request: Request,
        limits: aiohttp.ClientTimeout,
        shown: Identity,
        tls: ssl.SSLContext | None,
    ) -> aiohttp.ClientResponse:
        headers: CIMultiDict[str] = CIMultiDict(Accept=request.accept)
        for name, value in shown.headers.items():
            for single in (value,) if isinstance(value, str) else value:
                headers.add(name, single)
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        # The limit on headers stands apart from the body's: a watch's body may take hours, its headers may not.
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
                body = await response.read()
        raise error_of(response.status, body, str(request), _retry_after(response))

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Compression costs both ends more than the bytes it saves inside a cluster.
            self._session = aiohttp.ClientSession(
                headers={"User-Agent": f"gpufleet/{gpufleet.__version__}", "Accept-Encoding": "identity"},
                read_bufsize=_BUFFER,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
            # aiohttp would send PUT and DELETE again on a connection that broke, and a write that had been done
            # would come back as a conflict with itself. It has no public switch for that.
            self._session._retry_connection = False
        return self._session


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else None
