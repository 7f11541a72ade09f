"""Query Slurm through slurmrestd, over HTTP(S) or its Unix socket.

The path contains the version of the data format, and each Slurm supports three or four of them: the client
uses the newest one that works. It reads the token (JWT) from its file for every request, because tokens
expire within minutes.
"""

import ssl
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp

from gpufleet.errors import SlurmUnavailable, connection_problem
from gpufleet.runtime.response_body import BodyReader
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm.wire import (
    MAX_ANSWER_BYTES,
    AccountingRecord,
    JobRecord,
    NodeRecord,
    read_accounting,
    read_jobs,
    read_nodes,
)

FORMATS = tuple(f"v0.0.{number}" for number in range(45, 36, -1))
"""Versions of the data format to try, the newest first (25.11 has 44, 22.05 has 38)."""


_TOKEN_ERRORS = ("Unspecified error", "authentication")
"""Errors of slurmrestd when the controller or the database rejects a token."""

T = TypeVar("T")


class SlurmRest:
    """Query slurmrestd."""

    def __init__(self, settings: SlurmSettings, *, max_answer_bytes: int = MAX_ANSWER_BYTES) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._settings = settings
        self._format = ""
        self._accounting = True
        path = settings.url.removeprefix("unix://") if settings.url.startswith("unix:") else ""
        self._base = "http://slurmrestd" if path else settings.url.rstrip("/")
        self._socket = path.removeprefix("unix:")
        self._session: aiohttp.ClientSession | None = None

    async def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs of the controller, including those that ended in the last minutes."""
        return self._decode(read_jobs, await self._get("slurm", "jobs"))

    async def nodes(self) -> tuple[NodeRecord, ...]:
        """Return all nodes."""
        return self._decode(read_nodes, await self._get("slurm", "nodes"))

    async def accounting_jobs(self, since: float) -> tuple[AccountingRecord, ...]:
        """Return the jobs in the accounting database since then; none without such a database."""
        if not self._accounting:
            return ()
        try:
            # Slurm's time parser accepts "uts" in all versions; 22.05 rejects plain seconds.
            return self._decode(
                read_accounting, await self._get("slurmdb", "jobs", start_time=f"uts{since:.0f}")
            )
        except SlurmUnavailable as error:
            if "Nothing found" in str(error):
                return ()
            # Without accounting, the path does not exist or always returns this error.
            if "no /slurmdb" not in str(error) and "storage is disabled" not in str(error):
                raise
            self._accounting = False
            return ()

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _decode(self, decode: Callable[[bytearray], T], body: bytearray) -> T:
        """Decode a response, and mention the token in errors that an invalid one may cause."""
        try:
            return decode(body)
        except SlurmUnavailable as error:
            if self._settings.token_file is None or not any(text in str(error) for text in _TOKEN_ERRORS):
                raise
            raise SlurmUnavailable(
                f"{error}; the token in slurm.token_file may have expired (scontrol token)"
            ) from None

    async def _get(self, api: str, resource: str, **query: str) -> bytearray:
        for version in (self._format,) if self._format else FORMATS:
            status, body = await self._request(f"/{api}/{version}/{resource}", query)
            if status == 404:
                continue
            if status in (401, 403):
                raise SlurmUnavailable(
                    f"slurmrestd refuses access ({status}): put a valid token into slurm.token_file "
                    "(scontrol token) and its user into slurm.user"
                )
            if status >= 500 and not body.lstrip().startswith(b"{"):
                raise SlurmUnavailable(f"slurmrestd responds {status}")
            self._format = version
            return body
        tried, self._format = self._format or f"{FORMATS[-1]} to {FORMATS[0]}", ""
        raise SlurmUnavailable(f"slurmrestd has no /{api} in {tried}")

    async def _request(self, path: str, query: dict[str, str]) -> tuple[int, bytearray]:
        try:
            session = self._session = self._session or self._open_session()
            async with session.get(self._base + path, params=query, headers=self._headers()) as response:
                bodies = BodyReader(self._max_answer_bytes, SlurmUnavailable)
                return response.status, await bodies.read(response)
        except TimeoutError:
            raise SlurmUnavailable(f"slurmrestd did not answer within {self._settings.timeout:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SlurmUnavailable(f"slurmrestd can't be reached: {connection_problem(error)}") from None

    def _open_session(self) -> aiohttp.ClientSession:
        context: Any = True
        if self._settings.ca_file is not None:
            context = ssl.create_default_context(cafile=str(self._settings.ca_file))
        connector = aiohttp.UnixConnector(self._socket) if self._socket else aiohttp.TCPConnector(ssl=context)
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
