"""Test agents with simulated GPUs on a real API server, with exactly the rights that the chart grants."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.charts.rendering import objects, one
from tests.shim.nvml import NvmlShim, build_shim, switched

from e2e.cluster import Cluster
from e2e.cluster.binaries import Binaries
from e2e.cluster.cluster import free_ports
from e2e.cluster.identity import Identity
from e2e.cluster.rest import Rest
from e2e.fakenodes import FakeNodes
from e2e.system.release import CRDS, delete_crds
from gpufleet.agent.pod_resources import list_plugin_devices
from gpufleet.errors import KubernetesUnavailable

STATUSES = "/apis/gpu.scheduling/v1/gpunodestatuses"


def rights() -> str:
    """Return the chart's rights of an agent for a group of users, with leases in every namespace."""
    rendered = objects("gpu-scheduler")
    roles = [one(rendered, kind, "gpu-scheduler-agent") for kind in ("ClusterRole", "Role")]
    group = "rbac.authorization.k8s.io"
    role = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "e2e-agent"},
        "rules": [rule for each in roles for rule in each["rules"]],
    }
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "e2e-agent"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "e2e-agent"},
        "subjects": [{"kind": "Group", "name": "e2e-agents", "apiGroup": group}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, binding]})


@pytest.fixture(scope="module")
def identity(cluster: Cluster) -> Iterator[Identity]:
    """Install the CRDs and return a user with the rights of an agent."""
    cluster.kubectl("apply", "-f", str(CRDS))
    cluster.kubectl(
        "wait", "--for=condition=Established", "crd/gpunodestatuses.gpu.scheduling", "--timeout=30s"
    )
    cluster.kubectl("apply", "-f", "-", stdin=rights())
    yield cluster.user("agent", "e2e-agents")
    cluster.kubectl("delete", "-f", "-", stdin=rights())
    delete_crds(cluster)


@contextmanager
def agent(identity: Identity, shim: NvmlShim, node: str, namespace: str) -> Iterator[str]:
    """Run an agent and yield its address."""
    command = [sys.executable, "-m", "gpufleet", "agent", "--port", "0", "--node", node]
    flags = [
        "--set",
        "agent.period=300ms",
        "--lease-namespace",
        namespace,
        "--set",
        "devices.kernel_log=false",
    ]
    process = subprocess.Popen(
        [*command, *flags, "--kubeconfig", str(identity.kubeconfig)],
        env={**os.environ, **shim.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        assert " serves on " in line
        yield line.split()[-1]
    finally:
        process.terminate()
        assert process.wait(timeout=20) == 0
        assert process.stdout is not None
        process.stdout.close()


def test_two_agents_publish_only_changes_of_their_own_nodes(
    cluster: Cluster, identity: Identity, namespace: str, fake_nodes: FakeNodes, tmp_path: Path
) -> None:
    fake_nodes.add("gpu-a", "gpu-b")
    shims, urls = {}, {}
    with ExitStack() as stack:
        for node in ("gpu-a", "gpu-b"):
            (tmp_path / node).mkdir()
            shims[node] = NvmlShim(build_shim(), tmp_path / node)
            shims[node].describe(switched(8))
            urls[node] = stack.enter_context(agent(identity, shims[node], node, namespace))

        def status(node: str) -> dict[str, Any]:
            listed = {item["metadata"]["name"]: item for item in cluster.api.get(STATUSES)["items"]}
            found: dict[str, Any] = listed.get(node, {}).get("status", {})
            return found

        def healths(node: str) -> list[str]:
            return [device["health"] for device in status(node).get("devices", [])]

        cluster.wait_for("all GPUs", lambda: all(healths(node) == ["Healthy"] * 8 for node in shims))
        assert "gpu-a" in cluster.kubectl("get", "gns")
        shims["gpu-a"].xid(3, 48)
        cluster.wait_for("the XID", lambda: healths("gpu-a")[3] == "Unhealthy")
        assert healths("gpu-b") == ["Healthy"] * 8
        shims["gpu-a"].set("3.field.83", 10)  # reset: the energy counter starts again
        cluster.wait_for("the reset", lambda: healths("gpu-a")[3] == "Healthy")
        cluster.wait_for(
            "both changes in the events",
            lambda: (
                "GPU 3: XID 48: uncorrectable ECC error"
                in (description := cluster.kubectl("describe", "gns", "gpu-a"))
                and "GPU 3 is healthy again: it was reset" in description
            ),
        )

        cordon = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuNodeStatus",
            "metadata": {"name": "gpu-b"},
            "status": {"devices": [{"id": 1, "cordoned": True}]},
        }
        options = ("--server-side", "--subresource=status", "--field-manager=operator")
        cluster.kubectl("apply", *options, "-f", "-", stdin=json.dumps(cordon))
        cluster.wait_for("the cordon to count", lambda: status("gpu-b")["free"] == 7)
        assert status("gpu-b")["devices"][1]["cordoned"] is True

        lease = {"metadata": {"name": "gpu-gpu-b-0"}, "spec": {"holderIdentity": "pod-1"}}
        cluster.api.create(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", lease)
        pod = {
            "metadata": {"name": "train", "annotations": {"gpu.scheduling/allocated": "gpu-b:4,5"}},
            "spec": {"nodeName": "gpu-b", "containers": [{"name": "main", "image": "i"}]},
        }
        created = cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", pod)
        cluster.wait_for("the pod's GPUs", lambda: status("gpu-b")["free"] == 4)
        users = [device.get("inUseBy", []) for device in status("gpu-b")["devices"]]
        assert users[0] == ["pod-1"]
        assert users[4] == users[5] == [created["metadata"]["uid"]]

        cluster.kubectl("delete", "gns", "gpu-b")
        cluster.wait_for("the object to come back", lambda: healths("gpu-b") == ["Healthy"] * 8)
        cluster.wait_for("holders and no cordon", lambda: status("gpu-b")["free"] == 5)

        def exported(celsius: int) -> bool:
            metrics = httpx.get(f"{urls['gpu-b']}/metrics").text
            return bool(re.search(rf'temperature_celsius{{[^}}]*gpu="0"[^}}]*}} {celsius}', metrics))

        def wait_for_reads(*temperatures: int) -> None:
            """Change the temperature several times and wait each time until the agent exports it."""
            for celsius in temperatures:
                shims["gpu-b"].set("0.temperature", celsius)
                cluster.wait_for("the reading", partial(exported, celsius))

        wait_for_reads(71, 72, 73)
        since = cluster.audit_size()
        wait_for_reads(74, 75, 76, 77)
        writes = [
            entry for entry in cluster.audit(since) if "gpunodestatuses" in str(entry) and _is_write(entry)
        ]
        assert writes == [], "a temperature is no reason to write"
    fake_nodes.remove("gpu-b")
    cluster.wait_for("the object to go with its node", lambda: not status_of(cluster, "gpu-b"))


@pytest.mark.usefixtures("identity")
def test_an_agent_writes_only_the_status_of_its_own_node(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
    policies = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    account = "gpu-scheduler-agent"
    chart = [
        each
        for each in objects("gpu-scheduler", namespace=namespace)
        if each["kind"] in (*kinds, *policies)
        and each["metadata"]["name"].endswith((account, f"{account}-nodes"))
    ]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": chart})
    fake_nodes.add("own", "other")
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    try:
        spec = {"serviceAccountName": account, "nodeName": "own", "containers": [{"name": "c", "image": "i"}]}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "agent"}, "spec": spec}
        pod = cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", body)
        agents = Rest(cluster.service_account(namespace, account, pod=pod))
        unbound = Rest(cluster.service_account(namespace, account))

        def write(api: Rest, name: str, node: str, subresource: str = "") -> tuple[int, str]:
            body = {
                "apiVersion": "gpu.scheduling/v1",
                "kind": "GpuNodeStatus",
                "metadata": {"name": name},
                **({"status": {"total": 0}} if subresource else {"spec": {"nodeName": node}}),
            }
            path = f"{STATUSES}/{name}{subresource}?fieldManager=agent&force=true"
            return api.raw("PATCH", path, body, "application/apply-patch+yaml")

        # The API server loads a new policy after a moment.
        cluster.wait_for("the policy", lambda: write(unbound, "probe", "probe")[0] == 403)
        assert write(agents, "own", "own")[0] in (200, 201)
        assert write(agents, "own", "own", "/status")[0] == 200
        assert write(cluster.api, "other", "other")[0] in (200, 201), "other users are not restricted"
        for api, name, node, subresource in (
            (agents, "other", "other", ""),
            (agents, "other", "other", "/status"),
            (agents, "own", "other", ""),
            (agents, "new", "own", ""),
            (unbound, "own", "own", ""),
            (unbound, "own", "own", "/status"),
        ):
            status, text = write(api, name, node, subresource)
            assert status == 403, (name, node, subresource, text)
            assert "GpuNodeStatus of its own node" in text

        def publish(api: Rest, node: str, **resources: str) -> tuple[int, str]:
            body = {"status": {"capacity": resources, "allocatable": resources}}
            return api.raw("PATCH", f"/api/v1/nodes/{node}/status", body, "application/merge-patch+json")

        gpus = {"gpu.scheduling/gpu": "8"}
        cluster.wait_for("the second policy", lambda: publish(unbound, "own", **gpus)[0] == 403)
        assert publish(agents, "own", **gpus)[0] == 200
        assert cluster.api.get("/api/v1/nodes/own")["status"]["allocatable"]["gpu.scheduling/gpu"] == "8"
        for node, resources, reason in (
            ("other", gpus, "its own Node"),
            ("own", {"cpu": "1"}, "only change the resources gpu.scheduling"),
            ("own", {"nvidia.com/gpu": "8"}, "only change the resources gpu.scheduling"),
        ):
            status, text = publish(agents, node, **resources)
            assert status == 403, (node, text)
            assert reason in text
    finally:
        cluster.kubectl("delete", "-f", "-", stdin=manifest)


def test_the_grpc_client_works_with_grpc_go(control_plane: Binaries, tmp_path: Path) -> None:
    """etcd serves with grpc-go, as kubelets do."""
    peer = f"http://127.0.0.1:{free_ports(1)[0]}"
    socket = tmp_path / "localhost:1"
    flags = {
        "data-dir": tmp_path / "data",
        "listen-client-urls": f"unix://{socket.name}",
        "advertise-client-urls": f"unix://{socket.name}",
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"default={peer}",
        "log-level": "panic",
    }
    command = [str(control_plane.etcd), *(f"--{name}={value}" for name, value in flags.items())]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        # The response of a Go gRPC server without this service.
        expected = "gRPC status 12: unknown service v1.PodResourcesLister"
        Cluster.wait_for("etcd", lambda: expected in _list_error(socket))
    finally:
        process.terminate()
        process.wait(20)


def _list_error(socket: Path) -> str:
    try:
        return str(asyncio.run(list_plugin_devices(socket)))
    except KubernetesUnavailable as error:
        return str(error)


def status_of(cluster: Cluster, node: str) -> bool:
    return any(item["metadata"]["name"] == node for item in cluster.api.get(STATUSES)["items"])


def _is_write(entry: Any) -> bool:
    return entry.get("verb") in ("create", "update", "patch", "delete")
