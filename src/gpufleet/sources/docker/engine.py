"""A client for the API of a container engine, over its Unix socket or TLS.

It decodes only the fields that it needs. Of a container's environment, which may contain secrets, only the
variables that select GPUs are used.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import aiohttp
import msgspec

from gpufleet.errors import ContainersUnavailable, SettingsError, connection_problem
from gpufleet.runtime.response_body import BodyReader
from gpufleet.runtime.settings import DockerSettings
from gpufleet.runtime.urls import without_credentials

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Maximum size of a response; a list of ten thousand containers takes a third of it."""
_MAX_CONTAINERS = 100_000

_DOCKER_EVENTS = "create start restart stop die kill pause unpause rename update destroy"
_PODMAN_EVENTS = "died remove init cleanup"
_EVENTS = (*_DOCKER_EVENTS.split(), *_PODMAN_EVENTS.split())
"""Events that change a container; health checks cause many others."""
_MAX_EVENT_BYTES = 1024 * 1024

T = TypeVar("T")


class ContainerSummary(msgspec.Struct, frozen=True, rename="pascal"):
    """One entry of the container list."""

    id: str
    state: str = ""
    status: str = ""


class DiscoveredDevice(msgspec.Struct, frozen=True):
    """A device that the engine discovered through CDI."""

    id: str = msgspec.field(default="", name="ID")


class EngineInfo(msgspec.Struct, frozen=True, rename="pascal"):
    """The engine and its machine."""

    name: str = ""
    default_runtime: str = ""
    discovered_devices: list[DiscoveredDevice] | None = None


class EngineComponent(msgspec.Struct, frozen=True, rename="pascal"):
    """A component of the engine."""

    name: str = ""


class EngineVersion(msgspec.Struct, frozen=True, rename="pascal"):
    """The version of the engine."""

    components: list[EngineComponent] | None = None


class DeviceRequest(msgspec.Struct, frozen=True, rename="pascal"):
    """A request of `--gpus` or `--device nvidia.com/gpu=0`."""

    driver: str | None = ""
    count: int | None = 0
    device_ids: list[str] | None = msgspec.field(default=None, name="DeviceIDs")
    capabilities: list[list[str]] | None = None


class DeviceFile(msgspec.Struct, frozen=True, rename="pascal"):
    """A device of the host in a container."""

    path_on_host: str = ""


class HostConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """The configuration of a container that depends on the host."""

    device_requests: list[DeviceRequest] | None = None
    devices: list[DeviceFile] | None = None
    runtime: str | None = ""


class ContainerConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """The configuration that a container was created with."""

    env: list[str] | None = None
    labels: dict[str, str] | None = None
    image: str = ""
    user: str = ""


class ContainerState(msgspec.Struct, frozen=True, rename="pascal"):
    """The state of a container."""

    status: str = ""
    exit_code: int = 0
    started_at: str = ""
    finished_at: str = ""


class Container(msgspec.Struct, frozen=True, rename="pascal"):
    """The details of a container."""

    id: str
    name: str = ""
    created: str = ""
    state: ContainerState = ContainerState()
    host_config: HostConfig = HostConfig()
    config: ContainerConfig = ContainerConfig()


class _Actor(msgspec.Struct, frozen=True):
    id: str = msgspec.field(default="", name="ID")


class _Event(msgspec.Struct, frozen=True, rename="pascal"):
    actor: _Actor = _Actor()


class RequestFailed(ContainersUnavailable):
    """The engine is reachable, but this request failed or timed out."""


TIMEOUT_S = 10.0
"""For one request; engines on the same machine answer in milliseconds."""


class Engine:
    """The API of one engine. All methods raise ContainersUnavailable."""

    def __init__(self, settings: DockerSettings, *, timeout: float = TIMEOUT_S) -> None:
        self._timeout = timeout
        self._settings = settings
        scheme, separator, rest = settings.url.partition("://")
        if not separator or scheme not in ("unix", "http", "https", "tcp"):
            raise SettingsError(
                f"setting docker.url: {without_credentials(settings.url)!r} is invalid; use unix:///path, https://host:port "
                "or http://host:port"
            )
        self._socket = rest if scheme == "unix" else ""
        secure = scheme == "https" or (scheme == "tcp" and settings.ca_file is not None)
        self._base = (
            "http://engine" if self._socket else f"{'https' if secure else 'http'}://{rest.rstrip('/')}"
        )
        self._session: aiohttp.ClientSession | None = None
        self._podman: bool | None = None

    async def is_podman(self) -> bool:
        """Return whether the engine is Podman."""
        if self._podman is None:
            version: EngineVersion = await self._get("/version", EngineVersion)
            self._podman = any("Podman" in part.name for part in version.components or ())
        return self._podman

    async def info(self) -> EngineInfo:
        """Return information about the engine and its machine."""
        info: EngineInfo = await self._get("/info", EngineInfo)
        return info

    async def containers(self) -> list[ContainerSummary]:
        """List all containers, including stopped ones."""
        rows: list[ContainerSummary] = await self._get("/containers/json?all=true", list[ContainerSummary])
        return rows

    async def container(self, id: str) -> Container | None:
        """Return the details of a container; None if it does not exist."""
        found: Container | None = await self._get(f"/containers/{id}/json", Container, none_if_missing=True)
        return found

    async def changes(self) -> AsyncIterator[str]:
        """Yield the id of each container that changes, until the engine ends the stream."""
        filters = json.dumps({"type": ["container"], "event": _EVENTS}, separators=(",", ":"))
        path = f"/events?filters={filters}"
        no_timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout)
        try:
            async with self._open_session().get(self._base + path, timeout=no_timeout) as response:
                self._check(response.status, path)
                incomplete = b""
                async for chunk in response.content.iter_any():
                    *lines, incomplete = (incomplete + chunk).split(b"\n")
                    incomplete = incomplete[-_MAX_EVENT_BYTES:]
                    for line in lines:
                        yield _container_id(line)
                    # An engine that always has more to send must not keep other tasks waiting.
                    await asyncio.sleep(0)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from None

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _get(self, path: str, type_: type[T], none_if_missing: bool = False) -> Any:
        try:
            async with self._open_session().get(self._base + path) as response:
                if response.status == 404 and none_if_missing:
                    return None
                self._check(response.status, path)
                body = await BodyReader(MAX_RESPONSE_BYTES, RequestFailed).read(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from None
        if body.count(b'"Id"') > _MAX_CONTAINERS:
            raise RequestFailed(f"the engine lists more than {_MAX_CONTAINERS} containers")
        try:
            return msgspec.json.decode(body, type=type_)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RequestFailed(f"the engine's response cannot be decoded: {error}") from None

    def _check(self, status: int, path: str) -> None:
        if status != 200:
            raise RequestFailed(f"the engine responds {status} to {path.partition('?')[0]}")

    def _unavailable(self, error: Exception) -> ContainersUnavailable:
        if isinstance(error, TimeoutError):
            return RequestFailed(f"the engine did not answer within {self._timeout:g} s")
        if "Permission denied" in str(error):
            return ContainersUnavailable(
                f"no permission to use {self._socket}: add this user to the group of the socket"
            )
        return ContainersUnavailable(
            f"the engine at {without_credentials(self._settings.url)} can't be reached: {connection_problem(error)}"
        )

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = (
                aiohttp.UnixConnector(self._socket)
                if self._socket
                else aiohttp.TCPConnector(ssl=self._ssl_context() or True)
            )
            timeout = aiohttp.ClientTimeout(total=self._timeout)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._session

    def _ssl_context(self) -> ssl.SSLContext | None:
        settings = self._settings
        if settings.ca_file is None and settings.cert_file is None:
            return None
        try:
            context = ssl.create_default_context(cafile=str(settings.ca_file) if settings.ca_file else None)
            if settings.cert_file is not None:
                context.load_cert_chain(settings.cert_file, settings.key_file)
        except OSError as error:
            raise ContainersUnavailable(f"the certificates for the engine can't be read: {error}") from None
        return context


def _container_id(event: bytes) -> str:
    try:
        return msgspec.json.decode(event, type=_Event).actor.id
    except msgspec.DecodeError:
        return ""
