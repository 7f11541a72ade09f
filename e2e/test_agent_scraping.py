"""A server without Prometheus reads two agents that it finds on a real API server, with the rights of the charts.

An API server refuses endpoints on loopback, so everything runs in a network namespace of its own with two addresses.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.charts.rendering import objects, one
from tests.shim.nvml import NvmlShim, build_shim, switched

from e2e.cluster import Cluster, Identity
from e2e.cluster.binaries import Binaries
from e2e.machine.namespace import own_network
from e2e.system.release import CRDS
from e2e.test_server import serving

BRIDGE, PORT, NAMESPACE = "agents0", 9401, "gpu-system"
ADDRESSES = {"gpu-a": "10.245.0.1", "gpu-b": "10.245.0.2"}


@pytest.fixture
def cluster(control_plane: Binaries) -> Iterator[Cluster]:
    """Run a control plane of its own beside the addresses of two agents."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and ip of iproute2 for a network namespace")
    first, second = ADDRESSES.values()
    with own_network(BRIDGE, f"{first}/24"):
        subprocess.run(["ip", "address", "add", f"{second}/24", "dev", BRIDGE], check=True, timeout=30)
        with Cluster(control_plane) as cluster:
            cluster.create_namespace(NAMESPACE)
            cluster.kubectl("apply", "-f", str(CRDS))
            yield cluster


def test_a_server_without_prometheus_shows_the_readings_of_all_agents(
    cluster: Cluster, tmp_path: Path, data: Path
) -> None:
    server = identity(
        cluster, "gpufleet", {"kubernetes": {"leaseNamespace": NAMESPACE}}, "gpufleet", "gpufleet-leases"
    )
    names = ("gpu-scheduler-agent", "gpu-scheduler-agent")
    publisher = identity(cluster, "gpu-scheduler", {}, *names, namespace=NAMESPACE)
    service = one(objects("gpu-scheduler", namespace=NAMESPACE), "Service", "gpu-scheduler-agent")
    flags = ("--lease-namespace", NAMESPACE, "--set", "metrics.refresh=1s")
    with ExitStack() as stack, serving(server.kubeconfig, data, *flags) as url:

        def utilization() -> dict[tuple[str, int], float]:
            rows = httpx.get(f"{url}/api/v1/gpu/metrics", timeout=30).json()["data"]
            return {(row["node_name"], row["gpu_index"]): row["utilization"] for row in rows}

        assert utilization() == {}
        shims = {}
        stops = {}
        for node, address in ADDRESSES.items():
            (tmp_path / node).mkdir()
            shims[node] = NvmlShim(build_shim(), tmp_path / node)
            shims[node].describe(switched(4))
            stops[node] = stack.enter_context(ExitStack())
            stops[node].enter_context(agent(publisher, shims[node], node, address))
            cluster.api.create(
                f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
                endpoints(node, address, service["metadata"]["labels"]),
            )
        expected = {(node, gpu): 10.0 * gpu for node in ADDRESSES for gpu in range(4)}
        cluster.wait_for("readings of both agents", lambda: utilization() == expected, timeout=60)
        shims["gpu-b"].set("2.utilization", 77)
        cluster.wait_for("the new reading", lambda: utilization()["gpu-b", 2] == 77.0, timeout=60)
        stops["gpu-a"].close()
        cluster.wait_for(
            "the end of an agent", lambda: {node for node, _ in utilization()} == {"gpu-b"}, timeout=60
        )


@contextmanager
def agent(publisher: Identity, shim: NvmlShim, node: str, address: str) -> Iterator[None]:
    """Run the agent of a node at an address of its own."""
    command = [
        sys.executable,
        "-m",
        "gpufleet",
        "agent",
        "--host",
        address,
        "--port",
        str(PORT),
        "--node",
        node,
    ]
    flags = [
        "--set",
        "agent.period=300ms",
        "--lease-namespace",
        NAMESPACE,
        "--set",
        "devices.kernel_log=false",
    ]
    process = subprocess.Popen(
        [*command, *flags, "--kubeconfig", str(publisher.kubeconfig)],
        env={**os.environ, **shim.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert b" serves on " in process.stdout.readline()
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.communicate()


def endpoints(node: str, address: str, labels: dict[str, str]) -> dict[str, Any]:
    """Return the EndpointSlice that Kubernetes makes of the Service of the chart, with the Service's labels."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"agents-{node}", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address], "nodeName": node, "conditions": {"ready": True}}],
        "ports": [{"name": "metrics", "port": PORT, "protocol": "TCP"}],
    }


def identity(
    cluster: Cluster,
    chart: str,
    values: dict[str, Any],
    cluster_role: str,
    role: str,
    namespace: str = "default",
) -> Identity:
    """Return a user with the rights of a chart's component, and no others."""
    rendered = objects(chart, values, namespace)
    items = []
    for kind, name, where in (("ClusterRole", cluster_role, ""), ("Role", role, NAMESPACE)):
        found = [
            each for each in rendered if each["kind"] == kind and each["metadata"]["name"].endswith(name)
        ]
        meta = {"name": f"e2e-{chart}", **({"namespace": where} if where else {})}
        group = "rbac.authorization.k8s.io"
        items += [
            {
                "apiVersion": f"{group}/v1",
                "kind": kind,
                "metadata": meta,
                "rules": [rule for each in found for rule in each["rules"]],
            },
            {
                "apiVersion": f"{group}/v1",
                "kind": f"{kind}Binding",
                "metadata": meta,
                "roleRef": {"apiGroup": group, "kind": kind, "name": f"e2e-{chart}"},
                "subjects": [{"kind": "Group", "name": f"e2e-{chart}", "apiGroup": group}],
            },
        ]
    cluster.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    )
    return cluster.user(chart, f"e2e-{chart}")
