"""TLS contexts that follow their files.

Certificates of clients, servers and authorities rotate while the program runs. The context
is built again when a file has changed or a plugin gave a new certificate; connections under
the old one finish what they do and are not used for new requests, because the pool keeps
connections by context. Files that don't fit together (certificate and key are replaced one after
the other) are passed over until they do: the last good context serves meanwhile.
"""

import os
import ssl
import tempfile
from pathlib import Path

from gpufleet.errors import SettingsError
from gpufleet.kubernetes.client.connection import Connection
from gpufleet.kubernetes.client.credentials import ChangingFile
from gpufleet.kubernetes.client.timing import Timing
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")


class TlsIdentity:
    """The TLS context for new connections of one `Connection`."""

    def __init__(self, connection: Connection, timing: Timing) -> None:
        self._connection = connection
        self._parts = {
            name: ChangingFile(part, timing) if isinstance(part, Path) else part
            for name, part in (
                ("ca", connection.ca),
                ("certificate", connection.client_certificate),
                ("key", connection.client_key),
            )
        }
        self._built_from: tuple[bytes | None, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(
        self, granted: tuple[bytes, bytes] | None = None, *, now: bool = False
    ) -> ssl.SSLContext | None:
        """The context for a connection made now; None for plain HTTP. `granted` is a plugin's certificate and key."""
        if not self._connection.server.startswith("https://"):
            return None
        ca, certificate, key = (self._read(name, now) for name in ("ca", "certificate", "key"))
        if granted is not None:
            certificate, key = granted
        wanted = (ca, certificate, key)
        if self._context is None or wanted != self._built_from:
            try:
                self._context = self._build(ca, certificate, key)
            except SettingsError as error:
                if self._context is None:
                    raise
                _log.warning("new certificates not taken up", error=str(error))
            self._built_from = wanted
        return self._context

    def _read(self, name: str, now: bool) -> bytes | None:
        part = self._parts[name]
        return part.read(now=now) if isinstance(part, ChangingFile) else part

    def _build(self, ca: bytes | None, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cadata=ca.decode() if ca else None)
            if self._connection.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if certificate:
                _load_client(context, certificate, key or b"")
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"the certificates for {self._connection.server} don't load: {error}"
            ) from None
        return context


def _load_client(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # OpenSSL's Python face loads client certificates from files only; this one is ours alone and gone at once.
    descriptor, name = tempfile.mkstemp(prefix="gpufleet-client-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(name)
    finally:
        os.unlink(name)
