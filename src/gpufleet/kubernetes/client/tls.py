"""TLS contexts that are rebuilt when their files change.

Certificates rotate while the program runs. The context is rebuilt when a file has changed or an
exec plugin has returned a new certificate. Connections under the old context finish their
requests and are not reused, because aiohttp pools connections by context. While certificate and
key don't match (they are replaced one after the other), the last good context stays in use.
"""

import os
import ssl
import tempfile
from pathlib import Path

from gpufleet.errors import SettingsError
from gpufleet.kubernetes.client.connection import Connection
from gpufleet.kubernetes.client.credentials import ReloadingFile
from gpufleet.kubernetes.client.timing import Timing
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")


class TlsIdentity:
    """The TLS context for new connections of one `Connection`."""

    def __init__(self, connection: Connection, timing: Timing) -> None:
        self._connection = connection
        self._sources = tuple(
            ReloadingFile(source, timing) if isinstance(source, Path) else source
            for source in (connection.ca, connection.client_certificate, connection.client_key)
        )
        self._built_from: tuple[bytes | None, ...] | None = None
        self._context: ssl.SSLContext | None = None

    def context(
        self, granted: tuple[bytes, bytes] | None = None, *, now: bool = False
    ) -> ssl.SSLContext | None:
        """Return the context for a new connection; None for plain HTTP.

        `granted` is the certificate and key of an exec plugin. `now` checks the files even if they
        were checked a moment ago.
        """
        if not self._connection.server.startswith("https://"):
            return None
        ca, certificate, key = (
            source.read(now=now) if isinstance(source, ReloadingFile) else source for source in self._sources
        )
        if granted is not None:
            certificate, key = granted
        wanted = (ca, certificate, key)
        if self._context is None or wanted != self._built_from:
            try:
                self._context = self._build(ca, certificate, key)
            except SettingsError as error:
                if self._context is None:
                    raise
                _log.warning("new_certificates_rejected", error=str(error))
            self._built_from = wanted
        return self._context

    def _build(self, ca: bytes | None, certificate: bytes | None, key: bytes | None) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cadata=ca.decode() if ca else None)
            if self._connection.insecure:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            if certificate:
                _load_client_certificate(context, certificate, key or b"")
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise SettingsError(
                f"can't load the certificates for {self._connection.server}: {error}"
            ) from None
        return context


def _load_client_certificate(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # Python loads client certificates only from files. mkstemp makes this one readable by us alone.
    descriptor, name = tempfile.mkstemp(prefix="gpufleet-client-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(certificate + b"\n" + key)
        context.load_cert_chain(name)
    finally:
        os.unlink(name)
