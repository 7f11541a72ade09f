"""Test that a faulty GPU of a vendor's DRA driver gets no pod, with kube-scheduler and the rights of the chart.

Kubernetes 1.36 serves DeviceTaintRules as v1beta2 with the feature gate DRADeviceTaintRules, which is off by default.
The node itself is not tainted (`repair.taint_gpu_faults` off), so that only the rule keeps pods away.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.shim.nvml import NvmlShim, build_shim, switched, uuid

from e2e.cluster import Cluster
from e2e.cluster.identity import Identity
from e2e.fakenodes import FakeNodes
from e2e.test_repair import identities, process

__all__ = ["identities"]
NODE, DRIVER = "vendor-a", "gpu.nvidia.com"
API = "/apis/resource.k8s.io"
RULES = f"{API}/v1beta2/devicetaintrules"
FAULTY = 1


@pytest.fixture(scope="module")
def rules_served(cluster: Cluster) -> Iterator[None]:
    with cluster.feature_gates(["DRADeviceTaintRules"], ["resource.k8s.io/v1beta2"]):
        yield


class Vendor:
    """The DRA driver of a vendor with two GPUs on one node, and users of its DeviceClass."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._api, self._namespace = cluster.api, namespace

    def publish(self) -> None:
        devices = [{"name": f"gpu-{gpu}", "attributes": {"uuid": {"string": uuid(gpu)}}} for gpu in range(2)]
        pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": devices}
        self._api.create(f"{API}/v1/resourceslices", {"metadata": {"name": NODE}, "spec": spec})
        selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
        body = {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}}
        self._api.create(f"{API}/v1/deviceclasses", body)

    def withdraw(self) -> None:
        self._api.delete(f"{API}/v1/resourceslices/{NODE}")
        self._api.delete(f"{API}/v1/deviceclasses/{DRIVER}")

    def pod(self, name: str, gpu: int) -> None:
        """Create a pod with a claim of one particular GPU."""
        chosen = f'device.attributes["{DRIVER}"].uuid == "{uuid(gpu)}"'
        exactly = {"deviceClassName": DRIVER, "selectors": [{"cel": {"expression": chosen}}]}
        request = {"name": "gpu", "exactly": exactly}
        claim = {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}
        self._api.create(f"{API}/v1/namespaces/{self._namespace}/resourceclaims", claim)
        container = {"name": "main", "image": "train", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]}
        pods = f"/api/v1/namespaces/{self._namespace}/pods"
        self._api.create(pods, {"metadata": {"name": name}, "spec": spec})

    def is_bound(self, name: str) -> bool:
        pod = self._api.get(f"/api/v1/namespaces/{self._namespace}/pods/{name}")
        return bool(pod["spec"].get("nodeName"))

    def refusal(self, name: str) -> str:
        pod = self._api.get(f"/api/v1/namespaces/{self._namespace}/pods/{name}")
        conditions = pod.get("status", {}).get("conditions", ())
        return next((each.get("message", "") for each in conditions if each["type"] == "PodScheduled"), "")


@pytest.fixture
def vendor(cluster: Cluster, namespace: str, rules_served: None) -> Iterator[Vendor]:
    made = Vendor(cluster, namespace)
    made.publish()
    yield made
    made.withdraw()


def test_dra_pods_stay_away_from_a_faulty_gpu_until_it_is_healthy_again(
    cluster: Cluster,
    vendor: Vendor,
    identities: dict[str, Identity],
    namespace: str,
    fake_nodes: FakeNodes,
    tmp_path: Any,
) -> None:
    fake_nodes.add(NODE)
    shim = NvmlShim(build_shim(), tmp_path)
    shim.describe(switched(2))
    theirs = {"taint": {"key": "fan", "effect": "NoSchedule"}, "deviceSelector": {"driver": "other.example"}}
    cluster.api.create(RULES, {"metadata": {"name": "of-a-human"}, "spec": theirs})

    def rules() -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each["spec"] for each in cluster.api.get(RULES)["items"]}

    def reported() -> bool:
        found = cluster.api.get("/apis/gpu.scheduling/v1/gpunodestatuses")["items"]
        return any(each.get("status", {}).get("free") == 2 for each in found)

    repair = [
        "repair",
        "--port",
        "0",
        "--policy",
        "cordon",
        "--set",
        "repair.settle=1s",
        "--set",
        "repair.proofs=0",
    ]
    repair += ["--set", "repair.taint_gpu_faults=false", "--lease-namespace", namespace]
    agent = [
        "agent",
        "--node",
        NODE,
        "--set",
        "devices.kernel_log=false",
        "--port",
        "0",
        "--lease-namespace",
        namespace,
    ]
    with ExitStack() as stack:
        stack.callback(cluster.api.delete, f"{RULES}/of-a-human")
        stack.enter_context(
            process(*agent, "--kubeconfig", str(identities["agent"].kubeconfig), env=shim.environment())
        )
        stack.enter_context(process(*repair, "--kubeconfig", str(identities["repair"].kubeconfig)))
        cluster.wait_for("the agent's report", reported)
        shim.set(f"{FAULTY}.field.145", 1)  # row remapping failed
        cluster.wait_for("the rule", lambda: len(rules()) == 2)
        (ours,) = (spec for name, spec in rules().items() if name != "of-a-human")
        assert ours["deviceSelector"] == {"driver": DRIVER, "pool": NODE, "device": f"gpu-{FAULTY}"}
        assert not cluster.api.get(f"/api/v1/nodes/{NODE}")["spec"].get("taints")
        vendor.pod("on-faulty", FAULTY)
        vendor.pod("on-healthy", 0)
        cluster.wait_for("the pod on the healthy GPU", lambda: vendor.is_bound("on-healthy"))
        cluster.wait_for("the refusal", lambda: "cannot allocate all claims" in vendor.refusal("on-faulty"))
        assert not vendor.is_bound("on-faulty")
        shim.set(f"{FAULTY}.field.145", 0)
        cluster.wait_for("the end of the rule", lambda: list(rules()) == ["of-a-human"])
        cluster.wait_for("the pod on the repaired GPU", lambda: vendor.is_bound("on-faulty"))
