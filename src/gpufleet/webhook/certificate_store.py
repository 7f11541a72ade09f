"""Load the webhook's certificates: from a Secret that replicas share, or from files.

Replicas need no leader. A replica that finds the Secret missing creates it; one that finds a renewal due
writes it with the resourceVersion it has read. If two do so, the second gets a conflict and reads again.
The SSL context stays the same object: new connections get the new certificate, open ones continue.

The trust of the API server changes first: a keyring is served only after its `caBundle` is in the webhook
configurations.
"""

import asyncio
import base64
import os
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gpufleet.errors import KubernetesUnavailable, SettingsError
from gpufleet.kubernetes import KubeClient, Resource
from gpufleet.kubernetes.client.errors import (
    AlreadyExists,
    Conflict,
    Invalid,
    KubernetesRefused,
    ObjectNotFound,
)
from gpufleet.kubernetes.objects import KubeObject, ObjectMeta
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import WebhookSettings
from gpufleet.webhook.certificates import Keyring, new_keyring, renewed

_log = get_logger("webhook")
_KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_PATH = "/apis/admissionregistration.k8s.io/v1"
_MAX_SETTLE = 300.0
_TRIES = 5
"""Attempts to patch a configuration that others change at the same time."""


class Secret(KubeObject, frozen=True):
    """A Secret; values are in base64."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
    type: str = "Opaque"


SECRETS = Resource("", "v1", "secrets", "Secret", Secret, complete=True)


def serving_context() -> ssl.SSLContext:
    """Return a TLS context for the webhook's port, without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


class SharedCertificates:
    """Makes, shares and renews the webhook's own certificates."""

    def __init__(
        self,
        client: KubeClient,
        settings: WebhookSettings,
        context: ssl.SSLContext,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ring: Keyring | None = None
        """The keyring that is served."""
        self._client = client
        self._settings = settings
        self._context = context
        self._clock = clock
        self._names = names_of(settings)

    async def run(self) -> None:
        """Keep certificates and `caBundle` up to date until cancelled."""
        while True:
            try:
                await self.refresh()
            except (KubernetesUnavailable, KubernetesRefused) as error:
                _log.warning("certificates_not_refreshed", error=str(error))
            await asyncio.sleep(self._settings.check)

    async def refresh(self) -> None:
        """Renew what is due, publish the CAs, then serve with the result."""
        ring = await self._shared()
        await trust(self._client, self._settings.configurations, ring.bundle)
        if ring != self.ring:
            load(self._context, ring.certificate, ring.key)
            self.ring = ring
            _log.info(
                "certificate_loaded", authorities=len(ring.authorities), until=_expiry(ring.certificate)
            )

    async def _shared(self) -> Keyring:
        """Return the keyring in the Secret, after all steps that are due."""
        settings = self._settings
        settle = min(_MAX_SETTLE, settings.lifetime / 10)
        while True:
            try:
                secret = await self._client.get(SECRETS, settings.secret, settings.namespace)
                ring = _parse_keyring(secret)
                if ring is None:
                    changed = new_keyring(self._names, self._clock(), settings.lifetime)
                else:
                    step = renewed(ring, self._names, self._clock(), settings.lifetime, settle)
                    if step is None:
                        return ring
                    changed = step
                data = {**secret.data, **_secret_data(changed)}
                await self._client.replace(SECRETS, msgspec.structs.replace(secret, data=data))
            except ObjectNotFound:
                await self._create()
            except Conflict:
                continue  # another replica was faster: read again

    async def _create(self) -> None:
        ring = new_keyring(self._names, self._clock(), self._settings.lifetime)
        meta = ObjectMeta(
            name=self._settings.secret,
            namespace=self._settings.namespace,
            labels={"app.kubernetes.io/managed-by": "gpufleet-webhook"},
        )
        try:
            await self._client.create(SECRETS, Secret(metadata=meta, data=_secret_data(ring)))
        except AlreadyExists:
            pass


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
        _log.info("certificate_loaded", file=str(self._files[0]), until=_expiry(found[0]))


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


def load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Use this certificate for new connections."""
    # OpenSSL only reads files. This one is in memory: a pod's root may be read-only, and keys stay off disks.
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _parse_keyring(secret: Secret) -> Keyring | None:
    """Return the keyring in a Secret, or None if it is missing or incomplete."""
    try:
        parts = {
            name: base64.b64decode(secret.data[name]) for name in ("ca.crt", "ca.key", "tls.crt", "tls.key")
        }
        authorities = x509.load_pem_x509_certificates(parts["ca.crt"])
        x509.load_pem_x509_certificate(parts["tls.crt"])
    except (KeyError, ValueError):
        return None
    pems = tuple(each.public_bytes(Encoding.PEM) for each in authorities)
    return Keyring(pems, parts["ca.key"], parts["tls.crt"], parts["tls.key"])


def _secret_data(ring: Keyring) -> dict[str, str]:
    parts = {
        "ca.crt": ring.bundle,
        "ca.key": ring.authority_key,
        "tls.crt": ring.certificate,
        "tls.key": ring.key,
    }
    return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def _expiry(certificate: bytes) -> str:
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.isoformat()
