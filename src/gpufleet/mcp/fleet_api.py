"""Read the API of a gpufleet server, and keep the evidence of what was read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from gpufleet.errors import GpufleetError, InvalidRequest, NotFound, Unavailable

Params = Mapping[str, object]
_TIMEOUT = aiohttp.ClientTimeout(total=60, sock_connect=10)


@dataclass(frozen=True)
class Evidence:
    """One read of the API."""

    route: str
    time: str
    """UTC."""
    scope: str | None = None
    """The namespaces that the answer is limited to; None if it is not."""


@dataclass
class FleetApi:
    """The API as one caller sees it; `evidence` has every read of this object."""

    session: aiohttp.ClientSession
    server: str
    token: str = ""
    evidence: list[Evidence] = field(default_factory=list)

    async def read(self, path: str, params: Params | None = None) -> Any:
        """Return the data of a route; parameters that are None or empty are left out."""
        given = {name: _text(value) for name, value in (params or {}).items() if value not in (None, "")}
        route = path + (f"?{urlencode(given)}" if given else "")
        headers = {"accept": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        try:
            async with self.session.get(
                URL(self.server.rstrip("/") + route, encoded=True),
                headers=headers,
                timeout=_TIMEOUT,
                allow_redirects=False,
            ) as answer:
                body = await answer.json(content_type=None)
                scope = answer.headers.get("x-gpufleet-scope")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Unavailable(f"the gpufleet server does not answer {route}: {error}") from error
        if answer.status != 200:
            raise _error(answer.status, route, body)
        self.evidence.append(Evidence(f"GET {route}", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", scope))
        return body["data"] if isinstance(body, dict) and "data" in body else body


def path_of(*parts: str) -> str:
    """Return a path from its first part and names, which can't lead to another route."""
    first, *names = parts
    if any(name in (".", "..") or "/" in name for name in names):
        raise InvalidRequest("a name must not be . or .. and has no /")
    return "/".join([first, *(quote(name, safe="") for name in names)])


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _error(status: int, route: str, body: Any) -> GpufleetError:
    said = body.get("error") or body.get("message") if isinstance(body, dict) else ""
    sentence = f"GET {route} was answered with status {status}: {said}"
    if status == 404:
        return NotFound(sentence)
    return Unavailable(sentence) if status >= 500 else InvalidRequest(sentence)
