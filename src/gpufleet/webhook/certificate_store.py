"""The certificates that the webhook serves with: from a Secret that replicas share, or from files.

Replicas need no leader. Whoever finds the Secret missing creates it, whoever finds a step due writes it
under the version that it has read; of two the second gets a conflict and reads what the first wrote.
The SSL context stays the same object: connections made after a change get the new certificate, those
that stand go on undisturbed.

What the API server trusts is changed before what it is shown: a keyring is served only after its
`caBundle` stands in the webhook configurations.
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
_LONGEST_SETTLE = 300.0
_TRIES = 5
"""To write a configuration that others change meanwhile."""


class Secret(KubeObject, frozen=True):
    """A Secret; values are in base64."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
    type: str = "Opaque"


SECRETS = Resource("", "v1", "secrets", "Secret", Secret, whole=True)


def serving_context() -> ssl.SSLContext:
    """A context for the webhook's port, without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


class SharedKeys:
    """Makes, shares and renews the webhook's own certificates."""

    def __init__(
        self,
        client: KubeClient,
        settings: WebhookSettings,
        context: ssl.SSLContext,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ring: Keyring | None = None
        """What is served now."""
        self._client = client
        self._settings = settings
        self._context = context
        self._clock = clock
        self._names = names_of(settings)

    async def run(self) -> None:
        """Keep certificates and `caBundle` right until cancelled."""
        while True:
            try:
                await self.look()
            except (KubernetesUnavailable, KubernetesRefused) as error:
                _log.warning("certificates not looked at", error=str(error))
            await asyncio.sleep(self._settings.check)

    async def look(self) -> None:
        """Take every step that is due: share, tell the API server whom to trust, then serve."""
        ring = await self._shared()
        await trust(self._client, self._settings.configurations, ring.bundle)
        if ring != self.ring:
            load(self._context, ring.certificate, ring.key)
            self.ring = ring
            _log.info(
                "certificate in use", authorities=len(ring.authorities), until=_end_of(ring.certificate)
            )

    async def _shared(self) -> Keyring:
        """The keyring of all replicas, after the steps that are due."""
        settings = self._settings
        settle = min(_LONGEST_SETTLE, settings.lifetime / 10)
        while True:
            try:
                secret = await self._client.get(SECRETS, settings.secret, settings.namespace)
                ring = _read(secret)
                if ring is None:
                    changed = new_keyring(self._names, self._clock(), settings.lifetime)
                else:
                    step = renewed(ring, self._names, self._clock(), settings.lifetime, settle)
                    if step is None:
                        return ring
                    changed = step
                data = {**secret.data, **_written(changed)}
                await self._client.replace(SECRETS, msgspec.structs.replace(secret, data=data))
            except ObjectNotFound:
                await self._create()
            except Conflict:
                continue  # another replica was faster: read what it wrote

    async def _create(self) -> None:
        ring = new_keyring(self._names, self._clock(), self._settings.lifetime)
        meta = ObjectMeta(
            name=self._settings.secret,
            namespace=self._settings.namespace,
            labels={"app.kubernetes.io/managed-by": "gpufleet-webhook"},
        )
        try:
            await self._client.create(SECRETS, Secret(metadata=meta, data=_written(ring)))
        except AlreadyExists:
            pass


class FileKeys:
    """Serves what others put into files, and looks every now and then whether they changed it."""

    def __init__(self, settings: WebhookSettings, context: ssl.SSLContext) -> None:
        if settings.certificate_file is None or settings.key_file is None:
            raise SettingsError("give both --certificate-file and --key-file, or neither")
        self._files = (settings.certificate_file, settings.key_file)
        self._check = settings.check
        self._context = context
        self._seen: tuple[bytes, ...] = ()

    async def run(self) -> None:
        """Load anew what changed until cancelled."""
        while True:
            try:
                await self.look()
            except SettingsError as error:
                _log.warning("certificate not loaded anew", error=str(error))
            await asyncio.sleep(self._check)

    async def look(self) -> None:
        """Load the files if they are not what they were."""
        try:
            found = tuple(path.read_bytes() for path in self._files)
        except OSError as error:
            raise SettingsError(f"certificate file {error.filename}: {error.strerror}") from error
        if found == self._seen:
            return
        try:
            load(self._context, *found)
        except ssl.SSLError as error:
            # cert-manager replaces both at once, other tools one after the other.
            raise SettingsError(
                f"{self._files[0]} and {self._files[1]} don't fit together: {error}"
            ) from error
        self._seen = found
        _log.info("certificate in use", file=str(self._files[0]), until=_end_of(found[0]))


async def trust(client: KubeClient, names: Sequence[str], bundle: bytes) -> None:
    """Make the API server trust `bundle` in these webhook configurations, where they are there."""
    wanted = base64.b64encode(bundle).decode()
    for kind in _KINDS:
        for name in names:
            await _trust_in(client, f"{_PATH}/{kind}/{name}", wanted)


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
            continue  # another replica was faster, most likely with the same: read what it wrote
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
    """The names that the API server may call the webhook by."""
    service = f"{settings.service}.{settings.namespace}"
    return (f"{service}.svc", f"{service}.svc.cluster.local", service, *settings.names)


def load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Serve new connections with this certificate."""
    # OpenSSL takes files only. This one is in memory: a pod's root is read-only, and a key belongs on no disk.
    with os.fdopen(os.memfd_create("certificate"), "wb") as file:
        file.write(certificate + b"\n" + key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")


def _read(secret: Secret) -> Keyring | None:
    """The keyring in a Secret; None if it is not there or not whole."""
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


def _written(ring: Keyring) -> dict[str, str]:
    parts = {
        "ca.crt": ring.bundle,
        "ca.key": ring.authority_key,
        "tls.crt": ring.certificate,
        "tls.key": ring.key,
    }
    return {name: base64.b64encode(value).decode() for name, value in parts.items()}


def _end_of(certificate: bytes) -> str:
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.isoformat()
