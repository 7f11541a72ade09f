"""Kubernetes objects decode from real responses, with only the fields that are read."""

import msgspec
import pytest
import yaml

from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.objects import EMPTY, Lease, Node, Owner, Pod

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "train-0",
        "namespace": "team-a",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": "2026-11-01T08:00:00Z",
        "managedFields": [{"manager": "kubelet", "fieldsV1": {"f:status": {}}}],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "Other", "name": "o", "uid": "1"},
            {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "2", "controller": True},
        ],
    },
    "spec": {
        "nodeName": "node-a",
        "containers": [
            {"name": "main", "env": [{"name": "A"}], "resources": {"requests": {"nvidia.com/gpu": "8"}}},
            {"name": "side", "resources": {}},
        ],
        "initContainers": [{"name": "wait", "restartPolicy": "Always"}],
        "schedulingGates": [{"name": "gpu.scheduling/gang"}],
        "tolerations": [{"key": "a", "operator": "Exists", "tolerationSeconds": 300}],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None}],
        "containerStatuses": [
            {"name": "main", "containerID": "containerd://x", "state": {"running": {"startedAt": None}}}
        ],
    },
}


def test_a_decoded_pod_has_only_the_fields_that_are_read() -> None:
    pod = msgspec.json.decode(msgspec.json.encode(POD), type=Pod)
    assert pod.metadata.controller is not None
    assert pod.metadata.controller.kind == "Job"
    assert pod.spec.containers[0].resources.requests == {"nvidia.com/gpu": "8"}
    assert pod.spec.init_containers[0].restart_policy == "Always"
    assert pod.status.container_statuses[0].state.terminated is None
    assert not pod.finished
    assert len(msgspec.json.encode(pod)) < len(msgspec.json.encode(POD))


@pytest.mark.parametrize("kind", [Pod, Node, Lease, Owner])
def test_an_empty_object_decodes_and_shares_its_empty_mappings(kind: type[Pod]) -> None:
    item = msgspec.json.decode(b'{"metadata":{"name":"x"}}', type=kind)
    assert item.metadata.labels is EMPTY
    assert msgspec.json.encode(item.metadata) == b'{"name":"x"}'


DOCUMENTED_CLAIM = """
metadata: {name: training-gpus, namespace: ml-workloads}
spec:
  devices: {count: 4, policy: contiguous, exclusivity: Exclusive}
  topology: {mode: Preferred, minBandwidthGBps: 600}
  selector: {matchLabels: {gpu-type: a100, nvlink: "true"}}
status: {phase: Bound, nodeName: node-a, gpuIds: [0, 1], allocated: "node-a:0,1", message: fine}
"""


def test_the_documented_claim_decodes() -> None:
    claim = msgspec.convert(yaml.safe_load(DOCUMENTED_CLAIM), GpuClaim)
    assert claim.spec.devices == ClaimDevices(count=4)
    assert claim.spec.topology is not None
    assert (claim.spec.topology.mode, claim.spec.topology.min_bandwidth_gbps) == ("Preferred", 600)
    assert claim.spec.selector is not None
    assert claim.spec.selector.match_labels == {"gpu-type": "a100", "nvlink": "true"}
    assert (claim.status.phase, claim.status.gpu_ids, claim.status.allocated) == (
        "Bound",
        (0, 1),
        "node-a:0,1",
    )


def test_the_documented_node_status_survives_a_round_trip() -> None:
    device = {
        "id": 7,
        "health": "Unhealthy",
        "bandwidthGBps": 64,
        "island": "nvlink-group-1",
        "inUseBy": ["pod-abc-123"],
    }
    wire = {"metadata": {"name": "a"}, "spec": {"nodeName": "a"}, "status": {"total": 8, "devices": [device]}}
    status = msgspec.convert(wire, GpuNodeStatus)
    assert status.status.devices[0].bandwidth_gbps == 64
    assert msgspec.json.decode(msgspec.json.encode(status)) == wire
