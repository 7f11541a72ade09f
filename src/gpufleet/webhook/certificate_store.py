"""Keep the webhook's certificate: in a Secret that replicas share, or in files of another tool.

The API server trusts a new CA first: a keyring is served only after its `caBundle` is in the webhook
configurations.
"""

import asyncio
import base64
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpufleet.errors import SettingsError
from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.certificates.keyring import Keyring
from gpufleet.kubernetes.certificates.store import CertificateSpec, SharedCertificates, expiry, load
from gpufleet.kubernetes.client.errors import Conflict, Invalid, ObjectNotFound
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import WebhookSettings

_log = get_logger("webhook")
_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_PATH = "/apis/admissionregistration.k8s.io/v1"
_TRIES = 5
"""Attempts to patch a configuration that others change at the same time."""


class WebhookCertificates(SharedCertificates):
    """The webhook's own certificate, announced to the API server as `caBundle`."""

    def __init__(
        self,
        client: KubeClient,
        settings: WebhookSettings,
        context: ssl.SSLContext,
        clock: Callable[[], float] = time.time,
    ) -> None:
        spec = CertificateSpec(
            settings.namespace,
            settings.secret,
            "gpufleet-webhook",
            names_of(settings),
            settings.lifetime,
            settings.check,
        )
        super().__init__(client, spec, context, clock)
        self._configurations = settings.configurations

    async def publish(self, ring: Keyring) -> None:
        """Set `caBundle` in the webhook configurations."""
        await trust(self._client, self._configurations, ring.bundle)


class FileCertificates:
    """Serves a certificate from files that another tool writes, and reloads them when they change."""

    def __init__(self, settings: WebhookSettings, context: ssl.SSLContext) -> None:
        if settings.certificate_file is None or settings.key_file is None:
            raise SettingsError("give both --certificate-file and --key-file, or neither")
        self._files = (settings.certificate_file, settings.key_file)
        self._check = settings.check
        self._context = context
        self._loaded: tuple[bytes, ...] = ()

    async def run(self) -> None:
        """Reload changed files until cancelled."""
        while True:
            try:
                await self.refresh()
            except SettingsError as error:
                _log.warning("certificate_not_reloaded", error=str(error))
            await asyncio.sleep(self._check)

    async def refresh(self) -> None:
        """Load the files if they have changed."""
        try:
            found = tuple(path.read_bytes() for path in self._files)
        except OSError as error:
            raise SettingsError(f"certificate file {error.filename}: {error.strerror}") from error
        if found == self._loaded:
            return
        try:
            load(self._context, *found)
        except ssl.SSLError as error:
            # Some tools replace the two files one after the other.
            raise SettingsError(
                f"{self._files[0]} and {self._files[1]} do not belong together: {error}"
            ) from error
        self._loaded = found
        _log.info("certificate_loaded", file=str(self._files[0]), until=expiry(found[0]))


async def trust(client: KubeClient, names: Sequence[str], bundle: bytes) -> None:
    """Set `caBundle` in those of the named webhook configurations that exist."""
    encoded = base64.b64encode(bundle).decode()
    for kind in _KINDS:
        for name in names:
            await _trust_in(client, f"{_PATH}/{kind}/{name}", encoded)


async def _trust_in(client: KubeClient, path: str, bundle: str) -> None:
    for tries_left in reversed(range(_TRIES)):
        try:
            found = await client.read_json(path)
        except ObjectNotFound:
            return
        patch = _bundle_patch(found, bundle)
        if not patch:
            return
        try:
            await client.write_json("PATCH", path, patch, "application/json-patch+json")
        except (Conflict, Invalid):
            if not tries_left:
                raise
            continue  # another replica was faster: read again
        return


def _bundle_patch(configuration: dict[str, Any], bundle: str) -> list[dict[str, Any]]:
    operations = [
        {"op": "add", "path": f"/webhooks/{number}/clientConfig/caBundle", "value": bundle}
        for number, hook in enumerate(configuration.get("webhooks") or ())
        if hook["clientConfig"].get("caBundle") != bundle
    ]
    version = configuration["metadata"]["resourceVersion"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    return [test, *operations] if operations else []


def names_of(settings: WebhookSettings) -> tuple[str, ...]:
    """Return the host names by which the API server may call the webhook."""
    service = f"{settings.service}.{settings.namespace}"
    return (f"{service}.svc", f"{service}.svc.cluster.local", service, *settings.names)
