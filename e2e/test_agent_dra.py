"""Test the agent as DRA driver on a real node, with the rights and the DeviceClass of the chart."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.charts.rendering import objects
from tests.shim.nvml import NvmlShim, build_shim, switched

from e2e.cluster import Cluster, Component, RequestFailed
from e2e.cluster.cluster import free_ports
from e2e.cluster.rest import Rest, is_healthy
from e2e.node import Node, resource_claims
from e2e.node.pods import container, pod
from e2e.node.workspace import ALL, RESTARTABLE, NodeWorkspace
from e2e.system import Observations
from e2e.system.release import CRDS, delete_crds

CLASS = DRIVER = "gpu.scheduling"
ACCOUNT = "gpu-scheduler-agent"
KINDS = {
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "DeviceClass",
}
MEMORY_BUDGET_MIB = 80
Json = dict[str, Any]


class Agent:
    """The agent of the real node, as a DRA driver."""

    def __init__(self, cluster: Cluster, node: Node, namespace: str, shim: NvmlShim) -> None:
        self.cluster, self.node, self.shim = cluster, node, shim
        self._port = free_ports(1)[0]
        body = pod("agent", serviceAccountName=ACCOUNT, nodeName=node.name)
        made = cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", body)
        self.identity = cluster.service_account(namespace, ACCOUNT, pod=made)
        command = [sys.executable, "-m", "gpufleet", "agent", "--port", str(self._port), "--node", node.name]
        kubelet = node.layout.kubelet
        flags = [
            "--set",
            "agent.dra=true",
            "--set",
            f"agent.kubelet_root={kubelet}",
            "--set",
            "agent.period=1s",
        ]
        flags += ["--set", f"agent.kubelet={kubelet / 'pod-resources' / 'kubelet.sock'}"]
        flags += ["--set", "devices.kernel_log=false", "--lease-namespace", namespace]
        self.process: Component = node.process(
            "agent",
            [*command, *flags, "--kubeconfig", str(self.identity.kubeconfig)],
            lambda: is_healthy(f"http://127.0.0.1:{self._port}/readyz"),
            env=dict(os.environ) | shim.environment(),
        )

    def start(self) -> None:
        """Start it and wait until its devices are published and the kubelet has accepted it."""
        self.process.start(60)
        self.cluster.wait_for("published GPUs", lambda: len(resource_claims.published(self.node)) == 8)
        metrics = f"http://127.0.0.1:{self._port}/metrics"
        self.cluster.wait_for(
            "registration", lambda: is_healthy(metrics, text="gpufleet_agent_dra_registered 1.0")
        )

    def taints(self) -> dict[str, list[str]]:
        """Return the keys of the taints by device."""
        slices = self.cluster.api.get(f"{resource_claims.API}/resourceslices")["items"]
        devices = [device for each in slices for device in each["spec"].get("devices", ())]
        return {each["name"]: [t["key"] for t in each["taints"]] for each in devices if "taints" in each}

    def memory_mib(self) -> float:
        """Return its resident memory; nsenter is its parent."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        status = Path(f"/proc/{children[0] if children else pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@pytest.fixture(scope="module")
def agent(cluster: Cluster, real_node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """Install what the chart installs for an agent with `agent.dra`, and run one."""
    namespace = "agent-dra"
    cluster.create_namespace(namespace)
    rendered = objects("gpu-scheduler", {"agent": {"dra": True}}, namespace)
    chosen = [
        each
        for each in rendered
        if each["kind"] in KINDS and (ACCOUNT in each["metadata"]["name"] or each["kind"] == "DeviceClass")
    ]
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": chosen})
    cluster.kubectl("apply", "-f", str(CRDS))
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    shim = NvmlShim(build_shim(), tmp_path_factory.mktemp("nvml"))
    shim.describe(switched(8) | {f"{gpu.index}.uuid": gpu.uuid for gpu in real_node.gpus})
    running = Agent(cluster, real_node, namespace, shim)
    try:
        running.start()
        yield running
    finally:
        running.process.stop()
        cluster.kubectl("delete", "-f", "-", stdin=manifest)
        delete_crds(cluster)
        cluster.api.delete(f"/api/v1/namespaces/{namespace}")


class Workspace(NodeWorkspace):
    """Users with ResourceClaims in one namespace."""

    def __init__(self, cluster: Cluster, node: Node, namespace: str) -> None:
        super().__init__(cluster, node, namespace)
        self.claims = f"{resource_claims.API}/namespaces/{namespace}"

    def create(self, name: str, count: int, selector: str = "") -> None:
        """Create a template and a pod of the driver's class."""
        template = resource_claims.template(name, CLASS, count)
        if selector:
            request = template["spec"]["spec"]["devices"]["requests"][0]["exactly"]
            request["selectors"] = [{"cel": {"expression": selector}}]
        self.cluster.api.create(f"{self.claims}/resourceclaimtemplates", template)
        uses = {"claims": [{"name": "gpus"}]}
        manifest = pod(
            name,
            container(script=RESTARTABLE, resources=uses),
            init=[container("fetch", self.node.probe, resources=uses)],
            resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": name}],
        )
        self.cluster.api.create(self.pods, manifest)

    def run(self, name: str, count: int, selector: str = "") -> frozenset[int]:
        """Create a pod, wait until it runs and return its GPUs as kube-scheduler allocated them."""
        self.create(name, count, selector)
        self.wait_running(name)
        claim = resource_claims.claim_of(self.cluster, self.namespace, name)
        found = self.cluster.api.get(f"{self.claims}/resourceclaims/{claim}")
        results = found["status"]["allocation"]["devices"]["results"]
        assert {(each["driver"], each["pool"]) for each in results} == {(DRIVER, self.node.name)}
        return frozenset(int(each["device"].removeprefix("gpu-")) for each in results)

    def is_unschedulable(self, name: str) -> bool:
        conditions = self.read(name)["status"].get("conditions", ())
        return any(each.get("reason") == "Unschedulable" for each in conditions)


@pytest.fixture
def workspace(cluster: Cluster, real_node: Node, agent: Agent, namespace: str) -> Workspace:
    return Workspace(cluster, real_node, namespace)


def test_a_pod_opens_exactly_the_gpus_of_its_resource_claim(
    workspace: Workspace, agent: Agent, observations: Observations
) -> None:
    two, three = workspace.run("two", 2), workspace.run("three", 3)
    assert (len(two), len(three), two & three) == (2, 3, frozenset())
    workspace.check("two", two)
    workspace.check("three", three)
    free = min(ALL - two - three)
    chosen = f'device.attributes["{DRIVER}"].uuid == "{workspace.node.gpus[free].uuid}"'
    assert workspace.run("chosen", 1, chosen) == {free}
    workspace.check("chosen", frozenset({free}))
    memory = agent.memory_mib()
    observations.add("agent with 8 GPUs and DRA driver", f"{memory:.0f} MiB resident")
    assert memory < MEMORY_BUDGET_MIB


def test_a_pod_keeps_its_gpus_when_agent_kubelet_and_container_restart(
    workspace: Workspace, agent: Agent
) -> None:
    gpus = workspace.run("mine", 2)
    agent.process.kill()
    agent.start()
    workspace.check("mine", gpus)
    workspace.node.restart_kubelet()
    workspace.restart("mine")
    workspace.check("mine", gpus)
    agent.process.kill()
    workspace.node.restart_kubelet()
    workspace.create("meanwhile", 1)
    agent.start()
    workspace.cluster.wait_for(
        "the pod that waited for the driver", lambda: workspace.restarts("meanwhile") == 0
    )
    others = workspace.run("others", 3)
    assert not gpus & others
    workspace.check("others", others)
    workspace.check("mine", gpus)


def test_an_unhealthy_gpu_gets_a_taint_and_no_new_pod(workspace: Workspace, agent: Agent) -> None:
    gpu = 6
    agent.shim.xid(gpu, 48)
    cluster = workspace.cluster
    cluster.wait_for("a taint", lambda: agent.taints() == {f"gpu-{gpu}": ["gpu.scheduling/unhealthy"]})
    chosen = f'device.attributes["{DRIVER}"].index == {gpu}'
    workspace.create("waits", 1, chosen)
    cluster.wait_for("a pod that waits", lambda: workspace.is_unschedulable("waits"))
    agent.shim.set(f"{gpu}.field.83", 10)  # reset: the energy counter starts again
    agent.shim.xid(0, 13)
    cluster.wait_for("the running pod", lambda: workspace.restarts("waits") == 0)
    workspace.check("waits", frozenset({gpu}))


def test_a_device_of_a_running_pod_is_not_delivered_to_another_claim(workspace: Workspace) -> None:
    """kube-scheduler would not allocate it, but API server and kubelet accept whoever does."""
    mine = workspace.run("mine", 1)
    device = f"gpu-{min(mine)}"
    cluster, node = workspace.cluster, workspace.node
    none = {"name": "gpus", "exactly": {"deviceClassName": CLASS, "count": 1}}
    body = {"metadata": {"name": "double"}, "spec": {"devices": {"requests": [none]}}}
    cluster.api.create(f"{workspace.claims}/resourceclaims", body)
    allocation = _allocation(node.name, device)
    cluster.api.patch(
        f"{workspace.claims}/resourceclaims/double/status", {"status": {"allocation": allocation}}
    )
    uses = {"claims": [{"name": "gpus"}]}
    manifest = pod(
        "double",
        container(resources=uses),
        resourceClaims=[{"name": "gpus", "resourceClaimName": "double"}],
    )
    cluster.api.create(workspace.pods, manifest)

    def refused() -> bool:
        events = cluster.api.get(f"/api/v1/namespaces/{workspace.namespace}/events")["items"]
        text = f"{device} is in use by ResourceClaim {workspace.namespace}/"
        return any(text in each.get("message", "") for each in events)

    cluster.wait_for("an event with the reason", refused)
    assert workspace.restarts("double") is None


def test_an_agent_writes_only_the_slices_of_its_own_node_and_driver(agent: Agent) -> None:
    api = Rest(agent.identity)
    path = f"{resource_claims.API}/resourceslices"
    for node, driver in (("other", DRIVER), (agent.node.name, "gpu.nvidia.com")):
        spec = {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "resourceSliceCount": 1},
            "devices": [],
        }
        with pytest.raises(RequestFailed, match="its own driver and node"):
            api.create(path, {"metadata": {"name": f"forged-{node}"}, "spec": spec})


def _allocation(node: str, device: str) -> Json:
    results = [{"request": "gpus", "driver": DRIVER, "pool": node, "device": device}]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }
