"""Identities at the API server, with kubeconfigs for kubectl, helm and gpufleet."""

import base64
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.pki import KeyPair


@dataclass(frozen=True)
class Identity:
    """A user with a certificate or a service account with a token, at one address of the API server."""

    name: str
    url: str
    ca: Path
    kubeconfig: Path
    certificate: KeyPair | None = None
    token: str | None = None
    namespace: str = "default"

    def through(self, url: str, file: str) -> "Identity":
        """Return the same identity at another address, such as a proxy's; `file` names its kubeconfig."""
        kubeconfig = self.kubeconfig.with_name(f"{file}.kubeconfig")
        return write(
            Identity(self.name, url, self.ca, kubeconfig, self.certificate, self.token, self.namespace)
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Return a context that trusts the cluster's authority and presents the client certificate, if any."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.certificate:
            context.load_cert_chain(self.certificate.certificate, self.certificate.key)
        return context

    def headers(self) -> dict[str, str]:
        """Return the Authorization header of a token, if any."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def write(identity: Identity) -> Identity:
    """Write the self-contained kubeconfig of an identity and return the identity."""
    user: dict[str, Any] = {"token": identity.token} if identity.token else {}
    if identity.certificate:
        user["client-certificate-data"] = _encoded(identity.certificate.certificate)
        user["client-key-data"] = _encoded(identity.certificate.key)
    cluster = {"server": identity.url, "certificate-authority-data": _encoded(identity.ca)}
    context = {"cluster": "e2e", "user": identity.name, "namespace": identity.namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "clusters": [{"name": "e2e", "cluster": cluster}],
        "users": [{"name": identity.name, "user": user}],
        "contexts": [{"name": "e2e", "context": context}],
    }
    identity.kubeconfig.touch(mode=0o600)
    identity.kubeconfig.write_text(json.dumps(document, indent=2))
    return identity


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
