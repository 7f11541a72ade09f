"""Who speaks to the API server, and the kubeconfig that lets kubectl, helm and gpufleet speak as them."""

import base64
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.pki import KeyPair


@dataclass(frozen=True)
class Identity:
    """A user or service account at one address of the API server; proves itself by certificate or by token."""

    name: str
    url: str
    ca: Path
    kubeconfig: Path
    certificate: KeyPair | None = None
    token: str | None = None
    namespace: str = "default"

    def through(self, url: str, file: str) -> "Identity":
        """The same identity at another address, such as a proxy's; `file` names its kubeconfig."""
        kubeconfig = self.kubeconfig.with_name(f"{file}.kubeconfig")
        return write(
            Identity(self.name, url, self.ca, kubeconfig, self.certificate, self.token, self.namespace)
        )

    def ssl_context(self) -> ssl.SSLContext:
        """Trusts the cluster's authority, and shows the certificate if there is one."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if self.certificate:
            context.load_cert_chain(self.certificate.certificate, self.certificate.key)
        return context

    def headers(self) -> dict[str, str]:
        """The Authorization header, where a token is the proof."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


def write(identity: Identity) -> Identity:
    """Write the kubeconfig of an identity, with everything inside it, and return the identity."""
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
