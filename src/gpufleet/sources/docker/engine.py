"""Speak to a container engine over its unix socket or TLS.

Only the fields that are needed are decoded. Of a container's environment only the variables that
name GPUs are looked at: the rest of it is none of our business and never kept.
"""

import json
import ssl
from collections.abc import AsyncIterator
from typing import Any, TypeVar

import aiohttp
import msgspec

from gpufleet.errors import ContainersUnavailable, SettingsError, why_unreachable
from gpufleet.runtime.settings import DockerSettings

MOST_BYTES = 64 * 1024 * 1024
"""Largest answer that is taken; a listing of ten thousand containers has a third of that."""

_DOCKERS = "create start restart stop die kill pause unpause rename update destroy"
_PODMANS = "died remove init cleanup"
_CHANGES = (*_DOCKERS.split(), *_PODMANS.split())
"""Events after which a container may be another one; health checks make many others."""
_LONGEST_EVENT = 1024 * 1024

T = TypeVar("T")


class Named(msgspec.Struct, frozen=True, rename="pascal"):
    """One row of the listing."""

    id: str
    state: str = ""
    status: str = ""


class Discovered(msgspec.Struct, frozen=True):
    """A device that the engine found by CDI."""

    id: str = msgspec.field(default="", name="ID")


class Info(msgspec.Struct, frozen=True, rename="pascal"):
    """What the engine says of itself and its machine."""

    name: str = ""
    default_runtime: str = ""
    discovered_devices: list[Discovered] | None = None


class Component(msgspec.Struct, frozen=True, rename="pascal"):
    """A part of the engine."""

    name: str = ""


class Version(msgspec.Struct, frozen=True, rename="pascal"):
    """Which engine it is."""

    components: list[Component] | None = None


class DeviceRequest(msgspec.Struct, frozen=True, rename="pascal"):
    """What `--gpus` or `--device nvidia.com/gpu=0` asks for."""

    driver: str | None = ""
    count: int | None = 0
    device_ids: list[str] | None = msgspec.field(default=None, name="DeviceIDs")
    capabilities: list[list[str]] | None = None


class DeviceFile(msgspec.Struct, frozen=True, rename="pascal"):
    """A device of the host that a container has."""

    path_on_host: str = ""


class HostConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """How the container is joined to its host."""

    device_requests: list[DeviceRequest] | None = None
    devices: list[DeviceFile] | None = None
    runtime: str | None = ""


class Config(msgspec.Struct, frozen=True, rename="pascal"):
    """What the container was made with."""

    env: list[str] | None = None
    labels: dict[str, str] | None = None
    image: str = ""
    user: str = ""


class State(msgspec.Struct, frozen=True, rename="pascal"):
    """How it is doing."""

    status: str = ""
    exit_code: int = 0
    started_at: str = ""
    finished_at: str = ""


class Container(msgspec.Struct, frozen=True, rename="pascal"):
    """A container, looked at closely."""

    id: str
    name: str = ""
    created: str = ""
    state: State = State()
    host_config: HostConfig = HostConfig()
    config: Config = Config()


class _Actor(msgspec.Struct, frozen=True):
    id: str = msgspec.field(default="", name="ID")


class _Event(msgspec.Struct, frozen=True, rename="pascal"):
    actor: _Actor = _Actor()


class NoAnswer(ContainersUnavailable):
    """The engine is there and has no answer to this question, or none in time."""


class Engine:
    """The API of one engine. Everything raises ContainersUnavailable."""

    def __init__(self, settings: DockerSettings) -> None:
        self._settings = settings
        scheme, separator, rest = settings.url.partition("://")
        if not separator or scheme not in ("unix", "http", "https", "tcp"):
            raise SettingsError(
                f"setting docker.url: {settings.url!r} is wrong; it takes unix:///path, https://host:port "
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
        """Whether it is Podman that speaks Docker's API."""
        if self._podman is None:
            version: Version = await self._get("/version", Version)
            self._podman = any("Podman" in part.name for part in version.components or ())
        return self._podman

    async def info(self) -> Info:
        """The engine and its machine."""
        info: Info = await self._get("/info", Info)
        return info

    async def containers(self) -> list[Named]:
        """Every container, ended ones too."""
        rows: list[Named] = await self._get("/containers/json?all=true", list[Named])
        return rows

    async def container(self, id: str) -> Container | None:
        """One container, or None if it is gone."""
        found: Container | None = await self._get(f"/containers/{id}/json", Container, may_be_gone=True)
        return found

    async def changes(self) -> AsyncIterator[str]:
        """The id of each container that changes, until the engine ends the stream."""
        filters = json.dumps({"type": ["container"], "event": _CHANGES}, separators=(",", ":"))
        path = f"/events?filters={filters}"
        endless = aiohttp.ClientTimeout(total=None, sock_connect=self._settings.timeout)
        try:
            async with self._opened().get(self._base + path, timeout=endless) as answer:
                self._check(answer.status, path)
                rest = b""
                async for piece in answer.content.iter_any():
                    *lines, rest = (rest + piece).split(b"\n")
                    rest = rest[-_LONGEST_EVENT:]
                    for line in lines:
                        yield _who(line)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._away(error) from None

    async def close(self) -> None:
        """Let go of the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _get(self, path: str, shape: type[T], may_be_gone: bool = False) -> Any:
        try:
            async with self._opened().get(self._base + path) as answer:
                if answer.status == 404 and may_be_gone:
                    return None
                self._check(answer.status, path)
                body = bytearray()
                async for piece in answer.content.iter_any():
                    body += piece
                    if len(body) > MOST_BYTES:
                        raise NoAnswer(f"the engine answers more than {MOST_BYTES} bytes")
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._away(error) from None
        try:
            return msgspec.json.decode(body, type=shape)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NoAnswer(f"the engine's answer is not what was expected: {error}") from None

    def _check(self, status: int, path: str) -> None:
        if status != 200:
            raise NoAnswer(f"the engine answers {status} to {path.partition('?')[0]}")

    def _away(self, error: Exception) -> ContainersUnavailable:
        if isinstance(error, TimeoutError):
            return NoAnswer(f"the engine did not answer within {self._settings.timeout:g} s")
        if "Permission denied" in str(error):
            return ContainersUnavailable(
                f"no rights to use {self._socket}: add this user to the socket's group"
            )
        return ContainersUnavailable(
            f"the engine at {self._settings.url} can't be reached: {why_unreachable(error)}"
        )

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = (
                aiohttp.UnixConnector(self._socket)
                if self._socket
                else aiohttp.TCPConnector(ssl=self._trust() or True)
            )
            timeout = aiohttp.ClientTimeout(total=self._settings.timeout)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._session

    def _trust(self) -> ssl.SSLContext | None:
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


def _who(event: bytes) -> str:
    try:
        return msgspec.json.decode(event, type=_Event).actor.id
    except msgspec.DecodeError:
        return ""
