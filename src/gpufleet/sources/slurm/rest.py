"""Ask Slurm through slurmrestd, over HTTP(S) or its unix socket.

The path has the version of the data format in it, and each Slurm speaks three or four of them:
the newest one that is answered is kept. A token (JWT) is read from its file for each question,
since such tokens live for minutes.
"""

import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp

from gpufleet.errors import SlurmUnavailable, why_unreachable
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm.wire import JobRecord, NodeRecord, PastRecord, read_jobs, read_nodes, read_past

FORMATS = tuple(f"v0.0.{number}" for number in range(45, 36, -1))
"""Versions of the data format that are tried, the newest first (25.11 has 44, 22.05 has 38)."""


_REFUSALS = ("Unspecified error", "authentication")
"""What slurmrestd answers when the controller or the database doesn't believe a token."""

T = TypeVar("T")


class Rest:
    """Slurm as slurmrestd shows it."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._format = ""
        self._accounting = True
        path = settings.url.removeprefix("unix://") if settings.url.startswith("unix:") else ""
        self._base = "http://slurmrestd" if path else settings.url.rstrip("/")
        self._socket = path.removeprefix("unix:")
        self._session: aiohttp.ClientSession | None = None

    async def jobs(self) -> tuple[JobRecord, ...]:
        """Every job that the controller knows, ended ones of the last minutes among them."""
        return self._read(read_jobs, await self._get("slurm", "jobs"))

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """Every node."""
        return self._read(read_nodes, await self._get("slurm", "nodes"))

    async def past(self, since: float) -> tuple[PastRecord, ...]:
        """Jobs that the accounting database has since then; none where there is no such database."""
        if not self._accounting:
            return ()
        try:
            # Seconds as Slurm's own parser of times takes them in every version; bare ones 22.05 refuses.
            return self._read(read_past, await self._get("slurmdb", "jobs", start_time=f"uts{since:.0f}"))
        except SlurmUnavailable as error:
            if "Nothing found" in str(error):
                return ()
            # Without accounting the path is not there, or every answer is this error.
            if "no /slurmdb" not in str(error) and "storage is disabled" not in str(error):
                raise
            self._accounting = False
            return ()

    async def close(self) -> None:
        """Let go of the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _read(self, read: Callable[[bytes], T], answer: bytes) -> T:
        """What an answer says; where a token may be the reason that it says nothing, that is said."""
        try:
            return read(answer)
        except SlurmUnavailable as error:
            if self._settings.token_file is None or not any(words in str(error) for words in _REFUSALS):
                raise
            raise SlurmUnavailable(
                f"{error}; the token in slurm.token_file may not be valid any more (scontrol token)"
            ) from None

    async def _get(self, part: str, what: str, **query: str) -> bytes:
        tried = (self._format,) if self._format else FORMATS
        for form in tried:
            status, body = await self._answer(f"/{part}/{form}/{what}", query)
            if status == 404:
                continue
            if status in (401, 403):
                raise SlurmUnavailable(
                    f"slurmrestd refuses us ({status}): give slurm.token_file a valid token (scontrol token), "
                    "and slurm.user its user"
                )
            if status >= 500 and not body.lstrip().startswith(b"{"):
                raise SlurmUnavailable(f"slurmrestd answers {status}")
            self._format = form
            return body
        kept, self._format = self._format, ""
        raise SlurmUnavailable(f"slurmrestd has no /{part} in {kept or f'{FORMATS[-1]} to {FORMATS[0]}'}")

    async def _answer(self, path: str, query: dict[str, str]) -> tuple[int, bytes]:
        try:
            session = self._session = self._session or self._opened()
            async with session.get(self._base + path, params=query, headers=self._headers()) as answer:
                body = bytearray()
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > self._settings.max_answer_bytes:
                        raise SlurmUnavailable("slurmrestd answers more than slurm.max_answer_bytes")
                return answer.status, bytes(body)
        except TimeoutError:
            raise SlurmUnavailable(f"slurmrestd did not answer within {self._settings.timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SlurmUnavailable(f"slurmrestd can't be reached: {why_unreachable(error)}") from None

    def _opened(self) -> aiohttp.ClientSession:
        trust: Any = True
        if self._settings.ca_file is not None:
            trust = ssl.create_default_context(cafile=str(self._settings.ca_file))
        connector = aiohttp.UnixConnector(self._socket) if self._socket else aiohttp.TCPConnector(ssl=trust)
        return aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=self._settings.timeout)
        )

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json"}
        if self._settings.token_file is not None:
            try:
                headers["X-SLURM-USER-TOKEN"] = self._settings.token_file.read_text().strip()
            except (OSError, UnicodeDecodeError) as error:
                raise SlurmUnavailable(f"slurm.token_file can't be read: {error}") from None
        if self._settings.user:
            headers["X-SLURM-USER-NAME"] = self._settings.user
        return headers
