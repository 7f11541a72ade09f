"""A certificate authority for one cluster, deleted with it.

Elliptic-curve keys, because they are fast to generate. One authority signs server and client certificates. The
common name is the user and the organizations are the groups, as kube-apiserver reads them.
"""

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFETIME = datetime.timedelta(days=2)
_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_SERVER_ADDRESSES = ("127.0.0.1", "::1", "10.0.0.1")


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, as files in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Writes signed certificates into `directory`; clients trust `certificate`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("gpufleet-e2e")
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
        builder = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.pair = self._write("ca", builder.add_extension(usage, critical=True), self._key)

    @property
    def certificate(self) -> Path:
        """The certificate of the authority."""
        return self.pair.certificate

    def server(self, file: str, address: str) -> KeyPair:
        """Return a serving certificate for `address`, loopback and the names of the `kubernetes` service."""
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[x509.GeneralName] = [x509.DNSName(name) for name in _SERVER_NAMES]
        names += [
            x509.IPAddress(ipaddress.ip_address(each)) for each in sorted({address, *_SERVER_ADDRESSES})
        ]
        builder = self._builder(_name(file), key).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        return self._write(file, _for(builder, ExtendedKeyUsageOID.SERVER_AUTH), key)

    def user(self, file: str, name: str, groups: Iterable[str] = ()) -> KeyPair:
        """Return a client certificate for the user `name` in `groups`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name, groups), key)
        return self._write(file, _for(builder, ExtendedKeyUsageOID.CLIENT_AUTH), key)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + _LIFETIME)
            # Python 3.13 and later require these two.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )

    def _write(self, file: str, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> KeyPair:
        certificate = builder.sign(self._key, hashes.SHA256())
        pair = KeyPair(self._directory / f"{file}.crt", self._directory / f"{file}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_private_key(pair.key, key)
        return pair


def signing_keys(directory: Path) -> tuple[Path, Path]:
    """Write the key pair that signs and verifies service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = directory / "service-account.key", directory / "service-account.pub"
    write_private_key(private, key)
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def write_private_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write the key, readable only by its owner."""
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )


def _name(common: str, organizations: Iterable[str] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _for(builder: x509.CertificateBuilder, usage: x509.ObjectIdentifier) -> x509.CertificateBuilder:
    return builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
