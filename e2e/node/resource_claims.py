"""Dynamic resource allocation on a real node: the example driver, and claims that are allocated by us.

A pod names a ResourceClaimTemplate under a DeviceClass that matches no device, so kube-scheduler can't allocate the
claim and the pod waits. `allocate` writes the claim's `status.allocation`; kube-scheduler then binds the pod to the
node of that allocation, and the kubelet lets the driver prepare exactly those devices.
"""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from e2e.cluster import Cluster, Component
from e2e.node.node import Node

API = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
"""The name under which the example driver publishes its devices, as NVIDIA's driver does."""

REQUEST = "gpus"
Json = dict[str, Any]


def start_driver(node: Node, devices: int = 8) -> Component:
    """Run the example DRA driver on the node and wait until it has published its devices."""
    command = [
        str(node.programs.dra_driver),
        f"--driver-name={DRIVER}",
        f"--node-name={node.name}",
        f"--num-devices={devices}",
        f"--cdi-root={node.layout.cdi}",
        f"--kubelet-plugins-directory-path={node.layout.kubelet / 'plugins'}",
        f"--kubelet-registrar-directory-path={node.layout.kubelet / 'plugins_registry'}",
        f"--kubeconfig={node.cluster.kubeconfig}",
    ]
    (node.layout.kubelet / "plugins" / DRIVER).mkdir(parents=True, exist_ok=True)
    driver = node.process("dra-driver", command, lambda: len(published(node)) == devices)
    driver.start(60)
    return driver


def published(node: Node) -> list[str]:
    """Return the names of the devices in the node's ResourceSlices."""
    slices = node.cluster.api.get(f"{API}/resourceslices")["items"]
    ours = [each["spec"] for each in slices if each["spec"].get("nodeName") == node.name]
    return [device["name"] for spec in ours for device in spec.get("devices", ())]


def resource_slice(node: str, uuids: Mapping[int, str], multiple: bool = False) -> Json:
    """Return the slice of a node whose devices have these UUIDs by index; with `multiple`, claims can share a device."""
    more: Json = (
        {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "80Gi"}}} if multiple else {}
    )
    devices = [
        {"name": f"gpu-{at}", "attributes": {"uuid": {"string": uuid}, "index": {"int": at}}, **more}
        for at, uuid in uuids.items()
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"e2e-{node}"}, "spec": spec}


def publish_reported(cluster: Cluster, *nodes: str, multiple: bool = False) -> None:
    """Publish the GPUs that the agents of nodes report, as a vendor's driver would."""
    for node in nodes:
        status = cluster.api.get(f"/apis/gpu.scheduling/v1/gpunodestatuses/{node}")["status"]
        uuids = {each["id"]: each["uuid"] for each in status["devices"]}
        cluster.api.create(f"{API}/resourceslices", resource_slice(node, uuids, multiple))


def unpublish(cluster: Cluster, *nodes: str) -> None:
    """Delete the slices of nodes."""
    for node in nodes:
        cluster.api.delete(f"{API}/resourceslices/e2e-{node}")


def device_class(name: str) -> Json:
    """Return a DeviceClass that matches no device."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": "false"}}]},
    }


def template(name: str, class_name: str, count: int) -> Json:
    """Return a ResourceClaimTemplate for `count` devices."""
    request = {"name": REQUEST, "exactly": {"deviceClassName": class_name, "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def claim_of(cluster: Cluster, namespace: str, pod: str) -> str:
    """Wait until kube-controller-manager has made the claim of a pod, and return its name."""

    def found() -> str:
        status = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{pod}")["status"]
        claims = status.get("resourceClaimStatuses", ())
        return str(claims[0]["resourceClaimName"]) if claims else ""

    return str(cluster.wait_for(f"the claim of {pod}", found))


def allocation(node: str, devices: Sequence[str], now: datetime.datetime) -> Json:
    """Return the allocation of devices on a node, complete enough for kube-scheduler to follow it.

    Without `allocationTimestamp` it would try to add one for ever, and the field can't be changed.
    """
    results = [{"request": REQUEST, "driver": DRIVER, "pool": node, "device": each} for each in devices]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": results},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        "allocationTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def allocate(cluster: Cluster, namespace: str, claim: str, node: str, devices: Sequence[str]) -> None:
    """Allocate a claim, in one write."""
    body = {"status": {"allocation": allocation(node, devices, datetime.datetime.now(datetime.UTC))}}
    cluster.api.patch(f"{API}/namespaces/{namespace}/resourceclaims/{claim}/status", body)


def deallocate(cluster: Cluster, namespace: str, claim: str) -> None:
    """Clear the allocation of a claim that no pod has reserved, so that it can be planned again.

    kube-scheduler does so itself only if the pod fits on a node outside of the allocation.
    """
    body = {"status": {"allocation": None}}
    cluster.api.patch(f"{API}/namespaces/{namespace}/resourceclaims/{claim}/status", body)
