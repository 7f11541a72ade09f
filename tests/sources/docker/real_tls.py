"""A real TLS server in front of an engine's socket: Debian's socat, which requires a client certificate."""

import datetime
import ipaddress
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.debian import unpacked
from tests.waiting import block_until, listens


class Authority:
    """Sign certificates for this machine."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def signed(self, name: str) -> tuple[Path, Path]:
        """Return the files of a certificate for 127.0.0.1, for servers and clients, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
        builder = self._builder(subject, key).add_extension(here, critical=False)
        certificate, own = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.write_bytes(
            _pem(builder.add_extension(usages, critical=False).sign(self._key, hashes.SHA256()))
        )
        own.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, own

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )


class Guarded(NamedTuple):
    """The URL of the engine behind TLS, and the files that a client needs."""

    url: str
    ca_file: Path
    cert_file: Path
    key_file: Path


@contextmanager
def behind_tls(engine: Path, folder: Path) -> Iterator[Guarded]:
    """Serve the engine at a socket over TLS to clients with a certificate."""
    root = unpacked("socat", "libwrap0", "libreadline8")
    authority = Authority(folder, "authority")
    certificate, key = authority.signed("server")
    mine = authority.signed("client")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    libraries = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]
    listen = f"OPENSSL-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,cert={certificate},key={key},cafile={authority.file},verify=1"
    process = subprocess.Popen(
        [next(root.glob("usr/bin/socat*")), listen, f"UNIX-CONNECT:{engine}"],
        env={"LD_LIBRARY_PATH": ":".join(map(str, libraries))},
        stderr=subprocess.DEVNULL,
    )
    try:
        block_until(lambda: process.poll() is not None or listens(port))
        assert process.poll() is None, "socat ended"
        yield Guarded(f"https://127.0.0.1:{port}", authority.file, *mine)
    finally:
        process.terminate()
        process.wait(10)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
