"""Ask Prometheus, Thanos, Mimir or VictoriaMetrics over their common HTTP API.

The only code that speaks to the metric source. At most `max_queries` at once, each with a
time limit and a largest answer, so that a source in trouble costs a bounded amount of memory
and time. Queries go as forms in POST bodies: a selection of a thousand nodes fits no URL.
Tokens are read from their files for each request, since clusters rotate them.
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

from gpufleet.errors import MetricsUnavailable, SettingsError, why_unreachable
from gpufleet.runtime.settings import MetricsSettings

MAX_QUERY = 16_000
"""Longest expression: VictoriaMetrics takes 16,384 bytes unless its operator allows more."""

_AS_ASKED = {"nocache": "1", "latency_offset": "1ms", "max_lookback": "5m"}
"""For VictoriaMetrics; the others don't know these words and pass over them. Without the first it moves the times of a
range to multiples of the step and answers for now with what was 30 s ago; without the second it repeats an older value
for the last 30 s of a range; without the third a large step lets a sample stand for longer than in Prometheus."""


class _Refusal(msgspec.Struct):
    error: str = ""


class PrometheusClient:
    """Queries as bytes; errors as `MetricsUnavailable` with a sentence for the operator."""

    def __init__(self, settings: MetricsSettings) -> None:
        if not settings.url.startswith(("http://", "https://")):
            raise SettingsError(f"setting metrics.url: {settings.url!r} must begin with http:// or https://")
        self._settings = settings
        self._base = settings.url.rstrip("/")
        self._headers = {"Accept-Encoding": "gzip", **_headers(settings.headers)}
        self._gate = asyncio.Semaphore(settings.max_queries)
        self._tls = _tls(settings.ca_file)
        self._session: aiohttp.ClientSession | None = None
        self.aligns = False
        """Whether the source was seen to move the times of ranges to multiples of the step, as Thanos' front end does."""

    async def __aenter__(self) -> Self:
        limit = aiohttp.ClientTimeout(total=self._settings.timeout)
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=self._settings.max_queries)
        # Unpacked below in a thread: aiohttp does it in the event loop, which 100,000 series held up for 0.3 s.
        self._session = aiohttp.ClientSession(
            timeout=limit, headers=self._headers, connector=connector, auto_decompress=False
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def instant(self, expression: str, at: float) -> bytes:
        """The body of the answer to an instant query."""
        return await self._ask(
            "POST", "/api/v1/query", {"query": expression, "time": f"{at:.3f}", **_AS_ASKED}
        )

    async def range(self, expression: str, start: float, end: float, step: float) -> bytes:
        """The body of the answer to a range query."""
        span = {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return await self._ask("POST", "/api/v1/query_range", {"query": expression, **span, **_AS_ASKED})

    async def names(self, start: float, end: float) -> bytes:
        """The body of the answer to the question for all metric names."""
        span = {"start": f"{start:.3f}", "end": f"{end:.3f}"}
        return await self._ask("GET", "/api/v1/label/__name__/values", span)

    async def _ask(self, method: str, path: str, form: Mapping[str, str]) -> bytes:
        if self._session is None:
            raise MetricsUnavailable("the metric source is closed")
        try:
            async with (
                self._gate,
                self._session.request(
                    method,
                    self._base + path,
                    data=form if method == "POST" else None,
                    params=form if method == "GET" else None,
                    headers=self._authorization(),
                ) as answer,
            ):
                body = await self._read(answer)
        except TimeoutError:
            raise MetricsUnavailable(
                f"no answer within {self._settings.timeout:g} s from {self._base}"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise MetricsUnavailable(f"can't ask {self._base}: {why_unreachable(error)}") from None
        if answer.status != 200:
            raise MetricsUnavailable(f"{self._base} answered {answer.status}: {_reason(body)}")
        return body

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        pieces, size, most = [], 0, self._settings.max_answer_bytes
        async for piece in answer.content.iter_any():
            size += len(piece)
            if size > most:
                answer.close()
                raise self._too_large()
            pieces.append(piece)
        encoding = answer.headers.get("Content-Encoding", "identity").lower()
        if encoding == "identity":
            return b"".join(pieces)
        if encoding != "gzip":
            raise MetricsUnavailable(f"{self._base} answers in {encoding}, which it was not asked for")
        body = await asyncio.to_thread(_unpacked, b"".join(pieces), most)
        if len(body) > most:
            raise self._too_large()
        return body

    def _too_large(self) -> MetricsUnavailable:
        return MetricsUnavailable(
            f"an answer of {self._base} is larger than {self._settings.max_answer_bytes} bytes"
        )

    def _authorization(self) -> dict[str, str]:
        settings = self._settings
        if settings.bearer_token_file is not None:
            return {"Authorization": f"Bearer {_secret(settings.bearer_token_file)}"}
        if settings.username:
            password = _secret(settings.password_file) if settings.password_file is not None else ""
            pair = base64.b64encode(f"{settings.username}:{password}".encode()).decode()
            return {"Authorization": f"Basic {pair}"}
        return {}


def _unpacked(packed: bytes, most: int) -> bytes:
    """What a gzip stream holds; of one that holds more than `most` bytes, a byte more than that."""
    body = b""
    while packed and len(body) <= most:
        stream = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            body += stream.decompress(packed, most + 1 - len(body))
        except zlib.error as error:
            raise MetricsUnavailable(f"an answer can't be unpacked: {error}") from None
        if not stream.eof and len(body) <= most:
            raise MetricsUnavailable("an answer ends in the middle")
        packed = stream.unused_data
    return body


def _secret(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        raise MetricsUnavailable(f"can't read {file}, which holds what the metric source asks for") from None


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
        lambda text: msgspec.json.decode(text, type=_Refusal).error,
        lambda text: text[:200].decode("utf-8", "replace").strip(),
    )
    for parse in parsers:
        try:
            if reason := parse(body):
                return reason
        except msgspec.MsgspecError:
            continue
    return "no reason given"
