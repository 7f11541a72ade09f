"""Query Prometheus, Thanos, Mimir or VictoriaMetrics over their common HTTP API.

At most `MAX_QUERIES` run at a time, each with a timeout and a maximum response size, so that a source
in trouble costs a bounded amount of memory and time. Queries are sent as forms in POST bodies: a
selector of a thousand nodes does not fit into a URL. Tokens are read from their files for each
request, because clusters rotate them.
"""

import asyncio
import base64
import ssl
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from gpufleet.errors import MetricsUnavailable, SettingsError, connection_problem
from gpufleet.runtime.response_body import BodyReader
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.runtime.urls import is_valid, without_credentials

MAX_QUERY = 16_000
"""Bytes of the longest expression; VictoriaMetrics accepts 16,384 by default."""

_VICTORIA_METRICS = {"nocache": "1", "latency_offset": "1ms", "max_lookback": "5m"}
"""Parameters that make VictoriaMetrics behave like Prometheus; other servers ignore them. Without `nocache` it
aligns the times of a range to the step and answers instant queries with values of 30 s ago. Without
`latency_offset` it repeats an older value for the last 30 s of a range. Without `max_lookback` a large step
extends the lifetime of a sample."""


class _ErrorBody(msgspec.Struct):
    error: str = ""


MAX_QUERIES = 8
"""Concurrent queries, well below the 20 that Prometheus runs at a time by default."""

MAX_ANSWER_BYTES = 128 << 20
"""Bytes of all responses read at a time; the readings of 100,000 GPUs fit."""


class PrometheusClient:
    """Returns response bodies as bytes. Raises `MetricsUnavailable` with a sentence for the operator."""

    def __init__(self, settings: MetricsSettings, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        if not settings.url.startswith(("http://", "https://")):
            raise SettingsError("setting metrics.url: it must begin with http:// or https://")
        if not is_valid(settings.url):
            raise SettingsError(
                "setting metrics.url: it is not a valid URL; write special characters of a password as %XX, "
                "or use metrics.username and metrics.password_file"
            )
        self._settings = settings
        self._base = settings.url.rstrip("/")
        self._shown = without_credentials(self._base)
        self._headers = {"Accept-Encoding": "gzip", **_headers(settings.headers)}
        self._limit = asyncio.Semaphore(MAX_QUERIES)
        self._tls = _tls(settings.ca_file)
        self._session: aiohttp.ClientSession | None = None
        self._bodies = BodyReader(max_answer_bytes, MetricsUnavailable)
        self._max_answer_bytes = max_answer_bytes
        self.aligns_ranges = False
        """Whether the server aligns the times of ranges to the step, as Thanos' query frontend does."""

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=MAX_QUERIES)
        # Decompressed below in a thread: aiohttp would block the event loop for 0.3 s at 100,000 series.
        self._session = aiohttp.ClientSession(
            timeout=timeout, headers=self._headers, connector=connector, auto_decompress=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def instant(self, expression: str, at: float) -> bytes:
        """Run an instant query."""
        return await self._request(
            "POST", "/api/v1/query", {"query": expression, "time": f"{at:.3f}", **_VICTORIA_METRICS}
        )

    async def range(self, expression: str, start: float, end: float, step: float) -> bytes:
        """Run a range query."""
        span = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return await self._request(
            "POST", "/api/v1/query_range", {"query": expression, **span, **_VICTORIA_METRICS}
        )

    async def names(self, start: float, end: float) -> bytes:
        """List all metric names."""
        span = {"start": f"{start:.3f}", "end": f"{end:.3f}"}
        return await self._request("GET", "/api/v1/label/__name__/values", span)

    async def _request(self, method: str, path: str, form: Mapping[str, str]) -> bytes:
        if self._session is None:
            raise MetricsUnavailable("the metric source is closed")
        try:
            async with (
                self._limit,
                self._session.request(
                    method,
                    self._base + path,
                    data=form if method == "POST" else None,
                    params=form if method == "GET" else None,
                    headers=self._authorization(),
                ) as response,
            ):
                body = await self._read(response)
        except TimeoutError:
            raise MetricsUnavailable(
                f"no response within {self._settings.timeout:g} s from {self._shown}"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise MetricsUnavailable(f"can't query {self._shown}: {connection_problem(error)}") from None
        if response.status != 200:
            raise MetricsUnavailable(f"{self._shown} answered {response.status}: {_reason(body)}")
        return body

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        body, limit = bytes(await self._bodies.read(response)), self._max_answer_bytes
        encoding = response.headers.get("Content-Encoding", "identity").lower()
        if encoding == "identity":
            return body
        if encoding != "gzip":
            raise MetricsUnavailable(f"{self._shown} responds in {encoding}, which was not accepted")
        decompressed = await asyncio.to_thread(_decompressed, body, limit)
        if len(decompressed) > limit:
            raise self._bodies.too_large(response)
        return decompressed

    def _authorization(self) -> dict[str, str]:
        settings = self._settings
        if settings.bearer_token_file is not None:
            return {"Authorization": f"Bearer {_secret(settings.bearer_token_file)}"}
        if settings.username:
            password = _secret(settings.password_file) if settings.password_file is not None else ""
            pair = base64.b64encode(f"{settings.username}:{password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {}


def _decompressed(compressed: bytes, limit: int) -> bytes:
    """Decompress gzip data, but at most `limit` + 1 bytes."""
    body = b""
    while compressed and len(body) <= limit:
        stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            body += stream.decompress(compressed, limit + 1 - len(body))
        except zlib.error as error:
            raise MetricsUnavailable(f"a response can't be decompressed: {error}") from None
        if not stream.eof and len(body) <= limit:
            raise MetricsUnavailable("a response is truncated")
        compressed = stream.unused_data
    return body


def _secret(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise MetricsUnavailable(f"can't read {file} with the credentials of the metric source") from None


def _headers(lines: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise SettingsError("setting metrics.headers: each takes the form `Name: value`")
        headers[name.strip()] = value.strip()
    return headers


def _tls(ca_file: Path | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise SettingsError(f"setting metrics.ca_file: {ca_file} holds no certificates: {error}") from None


def _reason(body: bytes) -> str:
    parsers: tuple[Callable[[bytes], str], ...] = (
        lambda text: msgspec.json.decode(text, type=_ErrorBody).error,
        lambda text: text[:200].decode("utf-8", "replace").strip(),
    )
    for parse in parsers:
        try:
            if reason := parse(body):
                return reason
        except msgspec.MsgspecError:
            continue
    return "no reason given"
