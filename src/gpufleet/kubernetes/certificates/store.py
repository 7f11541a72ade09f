"""Share a certificate between replicas in a Secret, and renew it.

Replicas need no leader. A replica that finds the Secret missing creates it; one that finds a renewal due
writes it with the resourceVersion it has read. If two do so, the second gets a conflict and reads again.
The SSL context stays the same object: new connections get the new certificate, open ones continue.

The trust of the clients changes first: a keyring is used only after `publish` has announced its CAs.
"""

import asyncio
import base64
import os
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.certificates.keyring import Keyring, new_keyring, renewed
from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.errors import AlreadyExists, Conflict, KubernetesRefused, ObjectNotFound
from gpufleet.kubernetes.client.resources import Resource
from gpufleet.kubernetes.objects import KubeObject, ObjectMeta
from gpufleet.runtime.logs import get_logger

_log = get_logger("certificates")
_MAX_SETTLE = 300.0
"""Longest time in seconds for clients to load a new CA."""


class Secret(KubeObject, frozen=True):
    """A Secret; values are in base64."""

    data: dict[str, str] = msgspec.field(default_factory=dict)
    type: str = "Opaque"


SECRETS = Resource("", "v1", "secrets", "Secret", Secret, complete=True)


@dataclass(frozen=True)
class CertificateSpec:
    """Where the certificate is kept, the names in it, and how long it lives, in seconds."""

    namespace: str
    secret: str
    owner: str
    """The value of the Secret's label `app.kubernetes.io/managed-by`."""
    names: Sequence[str]
    lifetime: float
    check: float = 60.0


def serving_context(*, client_certificates: bool = False) -> ssl.SSLContext:
    """Return a TLS context for a port, without a certificate yet; it may require one of the clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    # kube-scheduler and kube-apiserver resume no sessions. Tickets are 40% of the time of a handshake with them.
    context.num_tickets = 0
    if client_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


class SharedCertificates:
    """Makes, shares and renews a certificate; clients of the port need one of the same CA if the context says so."""

    def __init__(
        self,
        client: KubeClient,
        spec: CertificateSpec,
        context: ssl.SSLContext,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.ring: Keyring | None = None
        """The keyring in use."""
        self._client = client
        self._spec = spec
        self._context = context
        self._clock = clock

    async def publish(self, ring: Keyring) -> None:
        """Announce the CAs of `ring` to clients; called before each check of the keyring in use."""

    async def run(self) -> None:
        """Keep the certificate up to date until cancelled."""
        while True:
            try:
                await self.refresh()
            except (KubernetesUnavailable, KubernetesRefused) as error:
                _log.warning("certificates_not_refreshed", error=str(error))
            await asyncio.sleep(self._spec.check)

    async def refresh(self) -> None:
        """Renew what is due, publish the CAs, then use the result."""
        ring = await self._shared()
        await self.publish(ring)
        if ring != self.ring:
            load(self._context, ring.certificate, ring.key)
            if self._context.verify_mode is ssl.CERT_REQUIRED:
                self._context.load_verify_locations(cadata=ring.bundle.decode())
            self.ring = ring
            _log.info("certificate_loaded", authorities=len(ring.authorities), until=expiry(ring.certificate))

    async def _shared(self) -> Keyring:
        """Return the keyring in the Secret, after all steps that are due."""
        spec = self._spec
        settle = min(_MAX_SETTLE, spec.lifetime / 10)
        while True:
            try:
                secret = await self._client.get(SECRETS, spec.secret, spec.namespace)
                ring = _parse_keyring(secret)
                if ring is None:
                    changed = new_keyring(spec.names, self._clock(), spec.lifetime)
                else:
                    step = renewed(ring, spec.names, self._clock(), spec.lifetime, settle)
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
        ring = new_keyring(self._spec.names, self._clock(), self._spec.lifetime)
        meta = ObjectMeta(
            name=self._spec.secret,
            namespace=self._spec.namespace,
            labels={"app.kubernetes.io/managed-by": self._spec.owner},
        )
        try:
            await self._client.create(SECRETS, Secret(metadata=meta, data=_secret_data(ring)))
        except AlreadyExists:
            pass


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


def expiry(certificate: bytes) -> str:
    """Return when the certificate expires."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.isoformat()
