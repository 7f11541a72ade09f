"""Command lines and configuration files of the control plane.

They are close to what an installer writes: RBAC, certificates, service accounts, audit. The differences: etcd does
not wait for the disk, because its data need not survive the run. The node lifecycle controllers are off, so that a
thousand nodes need no heartbeats (tests that need them pass `node_lifecycle`). New nodes get no not-ready taint,
because those controllers would have to remove it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.binaries import Binaries
from e2e.cluster.pki import KeyPair

_NODE_CONTROLLERS = ("node-lifecycle-controller", "taint-eviction-controller")
_CLOUD = (
    "cloud-node-lifecycle-controller",
    "node-route-controller",
    "service-lb-controller",
    "node-ipam-controller",
)


SERVICES = "services.sock"
"""The socket of the proxy to Services, in the cluster's directory."""


@dataclass(frozen=True)
class Ports:
    """The port of each component on 127.0.0.1."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int


@dataclass(frozen=True)
class Files:
    """Files that the components read and write."""

    root: Path
    ca: KeyPair
    serving: KeyPair
    signing_key: Path
    signing_public: Path
    controller_kubeconfig: Path
    scheduler_kubeconfig: Path

    @property
    def audit_log(self) -> Path:
        """The audit log, one JSON object per line."""
        return self.root / "logs" / "audit.log"

    @property
    def audit_policy(self) -> Path:
        """The policy that decides what is logged."""
        return self.root / "audit-policy.json"

    @property
    def egress(self) -> Path:
        """The egress selector, which tells the API server how to reach Services."""
        return self.root / "egress.json"

    @property
    def services(self) -> Path:
        """The socket of the proxy to Services."""
        return self.root / SERVICES

    @property
    def scheduler_configuration(self) -> Path:
        """The KubeSchedulerConfiguration in use."""
        return self.root / "kube-scheduler.json"


def audit_policy(bodies: bool = True) -> dict[str, Any]:
    """Log the metadata of every request, and with `bodies` the writes that show who held which GPU when."""
    writes = ["create", "update", "patch", "delete"]
    with_bodies = [
        {"group": "coordination.k8s.io", "resources": ["leases"]},
        {"group": "", "resources": ["pods/binding", "pods/status"]},
        {"group": "resource.k8s.io", "resources": ["resourceclaims", "resourceclaims/status"]},
        {"group": "gpu.scheduling"},
    ]
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "None", "nonResourceURLs": ["/healthz*", "/readyz*", "/livez*", "/openapi*"]},
            {"level": "Metadata", "namespaces": ["kube-node-lease"]},
            *([{"level": "RequestResponse", "resources": with_bodies, "verbs": writes}] if bodies else []),
            {"level": "Metadata"},
        ],
    }


def egress(services: Path) -> dict[str, Any]:
    """Reach Services through the proxy of `network.py` and everything else directly."""
    connection = {"proxyProtocol": "HTTPConnect", "transport": {"uds": {"udsName": str(services)}}}
    return {
        "apiVersion": "apiserver.k8s.io/v1beta1",
        "kind": "EgressSelectorConfiguration",
        "egressSelections": [{"name": "cluster", "connection": connection}],
    }


def scheduler_configuration(kubeconfig: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a KubeSchedulerConfiguration with the given overrides and the connection filled in."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        **overrides,
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(kubeconfig), "qps": 1000, "burst": 2000},
    }


def etcd(binaries: Binaries, ports: Ports, files: Files) -> list[str]:
    """Run etcd with one member, without fsync."""
    client, peer = f"http://127.0.0.1:{ports.etcd}", f"http://127.0.0.1:{ports.etcd_peer}"
    return [
        str(binaries.etcd),
        "--name=e2e",
        f"--data-dir={files.root / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=e2e={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


LOOPBACK = "127.0.0.1"


def apiserver(binaries: Binaries, ports: Ports, files: Files, address: str = LOOPBACK) -> list[str]:
    """Run the API server with RBAC, certificates, service account tokens and an audit log.

    On loopback it reaches Services through a proxy; at another address, which pods can reach, it needs none.
    """
    network = [
        f"--egress-selector-config-file={files.egress}",
        "--endpoint-reconciler-type=none",
    ]
    if address != LOOPBACK:
        network = [
            "--kubelet-preferred-address-types=InternalIP",  # names of nodes are in no DNS
            # As kubeadm sets it; a kube-scheduler in a pod logs errors without it.
            f"--requestheader-client-ca-file={files.ca.certificate}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        ]
    return [
        str(binaries.apiserver),
        f"--etcd-servers=http://127.0.0.1:{ports.etcd}",
        f"--bind-address={LOOPBACK if address == LOOPBACK else '0.0.0.0'}",
        f"--advertise-address={address}",
        f"--secure-port={ports.apiserver}",
        "--allow-privileged=true",  # as cluster installers set it
        "--permit-port-sharing=true",  # restart without waiting for the old socket
        "--shutdown-watch-termination-grace-period=1s",  # open watches delay the shutdown by a minute otherwise
        f"--tls-cert-file={files.serving.certificate}",
        f"--tls-private-key-file={files.serving.key}",
        f"--client-ca-file={files.ca.certificate}",
        "--authorization-mode=Node,RBAC",
        "--service-cluster-ip-range=10.0.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={files.signing_key}",
        f"--service-account-key-file={files.signing_public}",
        "--disable-admission-plugins=TaintNodesByCondition",
        f"--audit-policy-file={files.audit_policy}",
        f"--audit-log-path={files.audit_log}",
        "--audit-log-maxsize=10000",  # MB; at 100 the log is renamed, and later reads miss what was before
        *network,
    ]


def controller_manager(binaries: Binaries, ports: Ports, files: Files, node_lifecycle: bool) -> list[str]:
    """Run all controllers except those of clouds and, without `node_lifecycle`, those that evaluate heartbeats."""
    off = _CLOUD if node_lifecycle else (*_CLOUD, *_NODE_CONTROLLERS)
    return [
        str(binaries.controller_manager),
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.controller_manager}",
        f"--tls-cert-file={files.serving.certificate}",
        f"--tls-private-key-file={files.serving.key}",
        f"--kubeconfig={files.controller_kubeconfig}",
        f"--root-ca-file={files.ca.certificate}",
        f"--service-account-private-key-file={files.signing_key}",
        f"--cluster-signing-cert-file={files.ca.certificate}",
        f"--cluster-signing-key-file={files.ca.key}",
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--controllers=" + ",".join(["*", *(f"-{name}" for name in off)]),
        *(["--node-monitor-period=1s", "--node-monitor-grace-period=6s"] if node_lifecycle else []),
    ]


def scheduler(binaries: Binaries, ports: Ports, files: Files) -> list[str]:
    """Run kube-scheduler with the configuration in use."""
    return [
        str(binaries.scheduler),
        "--bind-address=127.0.0.1",
        f"--secure-port={ports.scheduler}",
        f"--tls-cert-file={files.serving.certificate}",
        f"--tls-private-key-file={files.serving.key}",
        f"--config={files.scheduler_configuration}",
    ]
