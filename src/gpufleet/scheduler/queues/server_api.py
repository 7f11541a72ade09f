"""Requests of the scheduler to the gpufleet server (`scheduler.server_url`)."""

import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

from gpufleet.errors import ServerUnavailable, connection_problem
from gpufleet.runtime.response_body import BodyReader
from gpufleet.runtime.settings import SchedulerSettings

TIMEOUT = 30.0
MAX_BYTES = 64 * 1024 * 1024


class ServerApi:
    """Reads from the server with the scheduler's token."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings

    def session(self) -> aiohttp.ClientSession:
        """Return a session; close it after use."""
        context: Any = True
        if self._settings.server_ca_file is not None:
            context = ssl.create_default_context(cafile=str(self._settings.server_ca_file))
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), timeout=timeout)

    async def get(self, session: aiohttp.ClientSession, path: str, query: Mapping[str, str]) -> bytes:
        """Return the body of a response; raise ServerUnavailable if there is none."""
        if self._settings.server_cluster:
            query = {**query, "cluster": self._settings.server_cluster}
        url = self._settings.server_url.rstrip("/") + path
        try:
            async with session.get(url, params=query, headers=self._headers()) as response:
                if response.status != 200:
                    raise ServerUnavailable(f"the server answers {response.status}")
                return bytes(await BodyReader(MAX_BYTES, ServerUnavailable).read(response))
        except TimeoutError:
            raise ServerUnavailable(f"the server did not answer within {TIMEOUT:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise ServerUnavailable(f"the server can't be reached: {connection_problem(error)}") from None

    def _headers(self) -> dict[str, str]:
        file = self._settings.server_token_file
        if file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {file.read_text().strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise ServerUnavailable(f"scheduler.server_token_file can't be read: {error}") from None
