"""Credentials for the API server, kept current.

A token file is checked for changes at most once a second, since the kubelet rotates a pod's token.
An exec plugin runs once, and again shortly before its credentials expire or when the server
rejects them; concurrent callers wait for the same run. Tokens never appear in logs or errors.
"""

import asyncio
import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.client.connection import Connection, ExecPlugin
from gpufleet.kubernetes.client.timing import Timing

PLUGIN_TIMEOUT = 60.0
"""Seconds that an exec plugin may take: some call a cloud provider."""

_EXPIRY_MARGIN = timedelta(seconds=30)
_CHECK_INTERVAL = 1.0


class ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The credentials that an exec plugin returns."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime | None = None


class ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    """The object that an exec plugin prints."""

    api_version: str
    kind: str
    status: ExecStatus | None = None


@dataclass(frozen=True)
class Identity:
    """The headers and client certificate of a request."""

    headers: Mapping[str, str | tuple[str, ...]]
    certificate: tuple[bytes, bytes] | None = None
    """Client certificate and key, from plugins that return them."""


class ReloadingFile:
    """A file that other programs replace; checked at most once a second."""

    def __init__(self, path: Path, timing: Timing) -> None:
        self._path = path
        self._timing = timing
        self._checked_at = float("-inf")
        self._stamp: tuple[int, int, int] | None = None
        self._content = b""

    def read(self, *, now: bool = False) -> bytes:
        """Return the current content; `now` checks the file even if it was checked a moment ago."""
        moment = self._timing.monotonic()
        if now or moment - self._checked_at >= _CHECK_INTERVAL:
            self._checked_at = moment
            self._load()
        return self._content

    def _load(self) -> None:
        try:
            facts = self._path.stat()
            stamp = (facts.st_mtime_ns, facts.st_size, facts.st_ino)
            if stamp != self._stamp:
                self._content, self._stamp = self._path.read_bytes(), stamp
        except OSError as error:
            # The file may be missing for a moment while it is replaced.
            if self._stamp is None:
                raise KubernetesUnavailable(f"can't read {self._path}: {error.strerror}") from None


class Credentials:
    """The current identity: by token, by password, or from an exec plugin."""

    def __init__(self, connection: Connection, timing: Timing) -> None:
        self._connection = connection
        self._timing = timing
        token = connection.token
        self._token_file = ReloadingFile(token, timing) if isinstance(token, Path) else None
        self._granted: ExecStatus | None = None
        self._plugin_lock = asyncio.Lock()
        self._fixed = _impersonation(connection)

    async def identity(self, *, now: bool = False) -> Identity:
        """Return the identity for a request; `now` checks the token file even if it was checked a moment ago."""
        if self._token_file is not None:
            return self._with_token(self._token_file.read(now=now).decode().strip())
        if self._connection.exec_plugin is not None:
            return self._of(await self._grant(self._connection.exec_plugin))
        return self._with_token(str(self._connection.token or ""))

    async def refresh(self, rejected: Identity) -> Identity:
        """Return a newer identity after a 401, or the same one if there is none.

        If many requests are rejected together, only one of them runs the plugin again.
        """
        if self._granted is not None and self._of(self._granted) == rejected:
            self._granted = None
        return await self.identity(now=True)

    def _with_token(self, token: str) -> Identity:
        if token:
            return Identity({"Authorization": f"Bearer {token}", **self._fixed})
        if self._connection.username:
            pair = f"{self._connection.username}:{self._connection.password}"
            basic = base64.b64encode(pair.encode()).decode()
            return Identity({"Authorization": f"Basic {basic}", **self._fixed})
        return Identity(self._fixed)

    def _of(self, granted: ExecStatus) -> Identity:
        identity = self._with_token(granted.token)
        if not granted.client_certificate_data:
            return identity
        pair = granted.client_certificate_data.encode(), granted.client_key_data.encode()
        return Identity(identity.headers, pair)

    async def _grant(self, plugin: ExecPlugin) -> ExecStatus:
        async with self._plugin_lock:
            granted = self._granted
            if granted is None or self._expires_soon(granted):
                granted = self._granted = await run_plugin(plugin)
            return granted

    def _expires_soon(self, granted: ExecStatus) -> bool:
        expiry = granted.expiration_timestamp
        return expiry is not None and self._timing.now() >= expiry - _EXPIRY_MARGIN


def _impersonation(connection: Connection) -> dict[str, str | tuple[str, ...]]:
    headers: dict[str, str | tuple[str, ...]] = {}
    if connection.impersonate:
        headers["Impersonate-User"] = connection.impersonate
    if connection.impersonate_groups:
        headers["Impersonate-Group"] = connection.impersonate_groups
    return headers


async def run_plugin(plugin: ExecPlugin) -> ExecStatus:
    """Run the plugin and return the credentials that it prints."""
    spec: dict[str, Any] = {"interactive": False}
    if plugin.cluster_info is not None:
        spec["cluster"] = plugin.cluster_info
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    try:
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *plugin.args,
            env={
                **os.environ,
                **dict(plugin.env),
                "KUBERNETES_EXEC_INFO": msgspec.json.encode(info).decode(),
            },
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise _plugin_failed(plugin, f"can't be started: {error.strerror}") from None
    try:
        async with asyncio.timeout(PLUGIN_TIMEOUT):
            printed, _ = await process.communicate()
    except TimeoutError:
        raise _plugin_failed(plugin, f"did not finish in {PLUGIN_TIMEOUT:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise _plugin_failed(plugin, f"exited with status {process.returncode}; run it in a shell to see why")
    return _parse_output(plugin, printed)


def _parse_output(plugin: ExecPlugin, printed: bytes) -> ExecStatus:
    try:
        credential = msgspec.json.decode(printed, type=ExecCredential)
    except msgspec.MsgspecError as error:
        raise _plugin_failed(plugin, f"printed no ExecCredential: {error}") from None
    if credential.api_version != plugin.api_version:
        raise _plugin_failed(
            plugin, f"returned {credential.api_version}, but the kubeconfig says {plugin.api_version}"
        )
    status = credential.status
    if status is None or not (status.token or status.client_certificate_data):
        raise _plugin_failed(plugin, "returned neither a token nor a client certificate")
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise _plugin_failed(
            plugin, "returned a client certificate without its key, or a key without its certificate"
        )
    return status


def _plugin_failed(plugin: ExecPlugin, problem: str) -> KubernetesUnavailable:
    hint = f" ({plugin.install_hint})" if plugin.install_hint else ""
    return KubernetesUnavailable(f"the credential plugin {plugin.command} {problem}{hint}")
