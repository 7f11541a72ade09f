"""Make and renew a CA of our own and the certificate that it signs.

Replicas share a keyring: the CAs to trust (newest first), the key of the newest CA, and the certificate with
its key. `renewed` takes one step at a time. Each step depends on the certificates alone, so
any replica may take it:

1. The certificate has passed two thirds of its lifetime, or lacks a name: make another.
2. The newest CA has passed two thirds of its lifetime: make another, trust both, keep the certificate.
3. All clients have had time to load the new CA: sign the certificate with it.
4. A CA has expired: stop trusting it.

Clients trust old and new CA during the change, so no call fails. Keys are P-256.

The certificate is valid for servers and clients: the webhook serves with it; the scheduler's extender serves
with it and kube-scheduler identifies itself with it.
"""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Seconds = float
_SKEW = 300.0
"""Seconds by which certificates are backdated, for clocks that are slow."""
_CA_LIFETIMES = 10.0
"""Lifetime of a CA, in lifetimes of a certificate."""
_USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True)
class Keyring:
    """CAs, certificate and keys, all in PEM."""

    authorities: tuple[bytes, ...]
    authority_key: bytes
    certificate: bytes
    key: bytes

    @property
    def bundle(self) -> bytes:
        """Return the CAs to trust, for `caBundle`."""
        return b"".join(self.authorities)


def new_keyring(names: Sequence[str], now: Seconds, lifetime: Seconds) -> Keyring:
    """Return a keyring with a new CA and a serving certificate for `names`."""
    authority, authority_key = _authority(now, lifetime)
    certificate, key = _serving(authority, authority_key, names, now, lifetime)
    return Keyring((authority,), authority_key, certificate, key)


def renewed(
    ring: Keyring, names: Sequence[str], now: Seconds, lifetime: Seconds, settle: Seconds
) -> Keyring | None:
    """Return the keyring after the next step that is due, or None. `settle` is the time to distribute a CA."""
    newest = x509.load_pem_x509_certificate(ring.authorities[0])
    serving = x509.load_pem_x509_certificate(ring.certificate)
    signed = _signed_by(serving, newest)
    # Certificates hold whole seconds, so a CA may be a second younger than its date says.
    distributed = signed or _age(newest, now) > settle + 1 or _remaining(serving, now) <= settle
    due = _age(serving, now) > 2 / 3 * _lifetime(serving) or not set(names) <= _names(serving)
    if distributed and (due or not signed):
        certificate, key = _serving(ring.authorities[0], ring.authority_key, names, now, lifetime)
        return replace(ring, certificate=certificate, key=key)
    if _age(newest, now) > 2 / 3 * _lifetime(newest):
        authority, key = _authority(now, lifetime)
        return replace(ring, authorities=(authority, *ring.authorities), authority_key=key)
    valid = tuple(pem for pem in ring.authorities if _remaining(x509.load_pem_x509_certificate(pem), now) > 0)
    if valid and valid != ring.authorities:
        return replace(ring, authorities=valid)
    return None


def _authority(now: Seconds, lifetime: Seconds) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpufleet authority")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    made = (
        _builder(name, name, key.public_key(), now, _CA_LIFETIMES * lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM), _pem(key)


def _serving(
    authority: bytes, authority_key: bytes, names: Sequence[str], now: Seconds, lifetime: Seconds
) -> tuple[bytes, bytes]:
    issuer = x509.load_pem_x509_certificate(authority)
    signer = serialization.load_pem_private_key(authority_key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    # A common name has at most 64 characters; clients only check the alternative names.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gpufleet")])
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    made = (
        _builder(name, issuer.subject, key.public_key(), now, lifetime)
        .add_extension(x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(_USAGES), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False
        )
        .sign(signer, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM), _pem(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: Seconds, lifetime: Seconds
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(now - _SKEW))
        .not_valid_after(_moment(now + lifetime))
    )


def _moment(seconds: Seconds) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> set[str]:
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(each.value) for each in found}


def _signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    own = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest
    issuer = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    return own == issuer


def _age(certificate: x509.Certificate, now: Seconds) -> Seconds:
    return now - certificate.not_valid_before_utc.timestamp() - _SKEW


def _lifetime(certificate: x509.Certificate) -> Seconds:
    span = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return span.total_seconds() - _SKEW


def _remaining(certificate: x509.Certificate, now: Seconds) -> Seconds:
    return certificate.not_valid_after_utc.timestamp() - now
