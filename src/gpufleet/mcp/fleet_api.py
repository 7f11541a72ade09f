"""Read the API of a gpufleet server for one call of a tool, and keep the evidence of what was read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from gpufleet.client import ApiError, AsyncClient
from gpufleet.client.call import Call
from gpufleet.client.options import ClientOptions
from gpufleet.errors import GpufleetError, InvalidRequest, NotFound, Unavailable

Params = Mapping[str, object]
_TIMEOUT = 60.0
_RETRIES = 1


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
    """The API as the caller of the client sees it; `evidence` has every read of this object."""

    client: AsyncClient
    evidence: list[Evidence] = field(default_factory=list)

    async def read(self, path: str, params: Params | None = None) -> Any:
        """Return the data of a route; parameters that are None or empty are left out."""
        given = {name: None if value == "" else value for name, value in (params or {}).items()}
        call: Call[Any] = Call(path, {}, given, Any)
        route = path + (f"?{urlencode(call.parameters)}" if call.parameters else "")
        try:
            data, scope = await self.client.get_scoped(call)
        except ApiError as error:
            raise _error(route, error) from error
        except Unavailable as error:
            raise Unavailable(f"the gpufleet server does not answer {route}: {error}") from error
        self.evidence.append(Evidence(f"GET {route}", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", scope))
        return data


def open_client(address: str, options: ClientOptions | None = None) -> AsyncClient:
    """Return a client for tools, which give up early: an assistant waits for them."""
    given: ClientOptions = {"environ": {}, **(options or {}), "retries": _RETRIES, "timeout": _TIMEOUT}
    return AsyncClient(address, **given)


def path_of(*parts: str) -> str:
    """Return a path from its first part and names, which can't lead to another route."""
    first, *names = parts
    if any(name in (".", "..") or "/" in name for name in names):
        raise InvalidRequest("a name must not be . or .. and has no /")
    return "/".join([first, *(quote(name, safe="") for name in names)])


def _error(route: str, error: ApiError) -> GpufleetError:
    sentence = f"GET {route} was answered with status {error.status}: {error}"
    if error.status == 404:
        return NotFound(sentence)
    return Unavailable(sentence) if error.status >= 500 else InvalidRequest(sentence)
