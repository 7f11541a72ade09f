"""Rules that keep DRA pods away from faulty GPUs of a vendor's driver, on an embedded API."""

from dataclasses import replace
from typing import Any

import pytest
from tests.repair.conftest import Cluster, fault
from tests.repair.test_controller import RULES, controller, phase
from tests.waiting import wait_until

from gpufleet.kubernetes.claimed_gpus import DeviceName
from gpufleet.repair.device_taints import rule_name
from gpufleet.repair.views import Policy, RepairRules

CORDON = replace(RULES, policy=Policy.CORDON, proofs=0)
API = "/apis/resource.k8s.io"


def kind(name: str, version: str) -> dict[str, Any]:
    """Return a CRD that stands for a kind of resource.k8s.io."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": anything}}}
    plural = f"{name.lower()}s"
    return {
        "metadata": {
            "name": f"{plural}.resource.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://example.com"},
        },
        "spec": {
            "group": "resource.k8s.io",
            "scope": "Cluster",
            "names": {"plural": plural, "singular": name.lower(), "kind": name},
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


def resource_slice(driver: str, node: str) -> dict[str, Any]:
    devices = [
        {"name": f"gpu-{gpu}", "attributes": {"uuid": {"string": f"GPU-{node}-{gpu}"}}} for gpu in range(4)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{driver}-{node}"}, "spec": spec}


@pytest.fixture
async def dra(cluster: Cluster) -> Cluster:
    """A cluster with a node whose GPUs NVIDIA's driver publishes, with rules as in Kubernetes 1.36."""
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await cluster.client.write_json("POST", definitions, kind("ResourceSlice", "v1"))
    await cluster.client.write_json("POST", definitions, kind("DeviceTaintRule", "v1beta2"))
    await cluster.add_node("a")
    await cluster.client.write_json("POST", f"{API}/v1/resourceslices", resource_slice("gpu.nvidia.com", "a"))
    return cluster


async def rules(cluster: Cluster) -> dict[str, dict[str, Any]]:
    page = await cluster.client.read_json(f"{API}/v1beta2/devicetaintrules")
    return {each["metadata"]["name"]: each for each in page["items"]}


async def round_of(cluster: Cluster, policy: RepairRules = CORDON, rounds: int = 1) -> None:
    """Let a new process do some rounds."""
    async with controller(cluster, policy) as made:
        await wait_until(lambda: made._state.taint_rules.state.synced and made._state.slices.state.synced)
        for _ in range(rounds):
            await made.reconcile()


async def test_only_the_faulty_gpu_is_tainted_and_only_until_its_node_is_returned(dra: Cluster) -> None:
    await dra.report("a", fault(2))
    await round_of(dra)
    (rule,) = (await rules(dra)).values()
    assert rule["spec"] == {
        "deviceSelector": {"driver": "gpu.nvidia.com", "pool": "a", "device": "gpu-2"},
        "taint": {"key": "gpu.scheduling/unhealthy", "value": "repair", "effect": "NoSchedule"},
    }
    repair = await dra.repair("a")
    assert repair is not None
    assert [owner["uid"] for owner in rule["metadata"]["ownerReferences"]] == [repair.metadata.uid]
    await dra.report("a")
    await round_of(dra, rounds=3)
    assert await phase(dra) == "Healthy"
    assert await rules(dra) == {}


async def test_a_rule_is_created_once_and_again_only_if_somebody_deleted_it(dra: Cluster) -> None:
    await dra.report("a", fault(2))
    await round_of(dra, rounds=3)
    (before,) = (await rules(dra)).values()
    await round_of(dra, rounds=3)
    (after,) = (await rules(dra)).values()
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    async with controller(dra, CORDON) as made:
        await wait_until(lambda: len(made._state.taint_rules.cache) == 1)
        await wait_until(lambda: made._state.slices.state.synced)
        name = before["metadata"]["name"]
        await dra.client.write_json("DELETE", f"{API}/v1beta2/devicetaintrules/{name}", {})
        await wait_until(lambda: len(made._state.taint_rules.cache) == 0)
        await made.reconcile()
    assert list(await rules(dra)) == [name]


async def test_a_fault_of_the_node_taints_all_its_gpus(dra: Cluster) -> None:
    await dra.report("a", fault(None, "rails", "none"))
    await round_of(dra)
    devices = [each["spec"]["deviceSelector"]["device"] for each in (await rules(dra)).values()]
    assert sorted(devices) == ["gpu-0", "gpu-1", "gpu-2", "gpu-3"]


async def test_the_rule_stays_while_the_driver_restarts_and_has_no_slices(dra: Cluster) -> None:
    await dra.report("a", fault(2))
    await round_of(dra)
    await dra.client.write_json("DELETE", f"{API}/v1/resourceslices/gpu.nvidia.com-a", {})
    await round_of(dra, rounds=2)
    assert len(await rules(dra)) == 1


async def test_with_observe_no_rule_is_set_and_one_that_was_left_is_removed(dra: Cluster) -> None:
    observe = replace(CORDON, policy=Policy.OBSERVE)
    await dra.report("a", fault(2))
    await round_of(dra, observe, rounds=2)
    assert await rules(dra) == {}
    await round_of(dra, CORDON, rounds=2)
    assert len(await rules(dra)) == 1
    await round_of(dra, observe, rounds=2)
    assert await rules(dra) == {}


async def test_rules_of_others_and_devices_of_our_own_agent_are_left_alone(dra: Cluster) -> None:
    await dra.client.write_json("POST", f"{API}/v1/resourceslices", resource_slice("gpu.scheduling", "a"))
    theirs = {
        "metadata": {"name": "broken-fan", "annotations": {"gpu.scheduling/node": "a"}},
        "spec": {"taint": {"key": "fan", "effect": "NoSchedule"}},
    }
    await dra.client.write_json("POST", f"{API}/v1beta2/devicetaintrules", theirs)
    await dra.report("a", fault(2))
    await round_of(dra)
    ours = rule_name(DeviceName("gpu.nvidia.com", "a", "gpu-2"))
    assert set(await rules(dra)) == {"broken-fan", ours}
    await dra.report("a")
    await round_of(dra, rounds=3)
    assert set(await rules(dra)) == {"broken-fan"}
