"""Reach a server in a cluster through its API server: kubectl's port-forward, a real kubelet, and the kubeconfig's token."""

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

from e2e.cluster import Cluster
from e2e.node import Node
from e2e.node.pods import container, pod
from e2e.test_server import serving, viewer

FORWARDING = [
    {"apiGroups": [""], "resources": ["services", "pods"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create"]},
]


def test_commands_reach_the_service_of_a_kubeconfig(
    cluster: Cluster, real_node: Node, namespace: str, data: Path
) -> None:
    """The server listens on this machine, and the pod has the network of this machine."""
    with (
        viewer(cluster, namespace, "default"),
        serving(cluster.kubeconfig, data, "--token-review") as address,
    ):
        port = urlsplit(address).port
        _create_service(cluster, namespace, port or 0)
        _allow_forwarding(cluster, namespace)
        user = cluster.service_account(namespace, "default", 600)
        command = [sys.executable, "-m", "gpufleet", "get", "nodes", "-o", "json"]
        done = subprocess.run(
            [*command, "--service", f"{namespace}/fleet"],
            env={**cluster.commands.environment(user), "HOME": str(data)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["kind"] == "List"
        other = subprocess.run(
            [*command, "--service", f"{namespace}/absent"],
            env={**cluster.commands.environment(user), "HOME": str(data)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert other.returncode == 1
        assert f"kubectl can't reach the service {namespace}/absent" in other.stderr


def _create_service(cluster: Cluster, namespace: str, port: int) -> None:
    ports = [{"name": "http", "containerPort": port}]
    manifest = pod("fleet", container(ports=ports))
    manifest["metadata"]["labels"] = {"app": "fleet"}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.api.create(pods, manifest)
    service = {
        "metadata": {"name": "fleet"},
        "spec": {
            "selector": {"app": "fleet"},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
        },
    }
    cluster.api.create(f"/api/v1/namespaces/{namespace}/services", service)
    cluster.wait_for(
        "the pod of the service", lambda: cluster.api.get(f"{pods}/fleet")["status"]["phase"] == "Running"
    )


def _allow_forwarding(cluster: Cluster, namespace: str) -> None:
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    cluster.api.create(f"{rbac}/roles", {"metadata": {"name": "forward"}, "rules": FORWARDING})
    cluster.api.create(
        f"{rbac}/rolebindings",
        {
            "metadata": {"name": "forward"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "forward"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
        },
    )
