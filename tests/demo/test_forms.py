"""The pods, claims, leases and node reports of the simulation have the form that the product gives them."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.demo.test_player import NOW, SIMULATION, shown

from gpufleet.demo.objects.identities import pods_of
from gpufleet.demo.simulation.hardware import DAY
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE, VISIBLE
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease, Node, Pod
from gpufleet.scheduler.claim_status import status_of
from gpufleet.scheduler.state import Ledger
from gpufleet.webhook.claim_validation import validate_claim
from gpufleet.webhook.pod_admission import PodRules, admit_create, admit_update
from gpufleet.webhook.wire import AdmissionRequest
from kubelite import KubeLite

Json = dict[str, Any]
LATER = NOW + 9 * DAY
"""When the other node of each faulty pair is faulty."""


def objects(server: KubeLite, collection: str) -> list[Json]:
    return [entry.object for entry in server.store.collection(collection).entries.values()]


def claims_of(server: KubeLite) -> dict[tuple[str, str], GpuClaim]:
    found = [msgspec.convert(item, GpuClaim) for item in objects(server, "gpu.scheduling/gpuclaims")]
    return {(claim.metadata.namespace, claim.metadata.name): claim for claim in found}


def claim_pods(server: KubeLite) -> Iterator[Json]:
    return (pod for pod in objects(server, "pods") if CLAIM in pod["metadata"].get("annotations", {}))


def filled_ledger(server: KubeLite) -> Ledger:
    """Return the scheduler's view of everything in the API."""
    ledger = Ledger()
    for item in objects(server, "nodes"):
        ledger.put_node(msgspec.convert(item, Node))
    for item in objects(server, "pods"):
        ledger.put_pod(msgspec.convert(item, Pod))
    for item in objects(server, "gpu.scheduling/gpunodestatuses"):
        ledger.put_report(msgspec.convert(item, GpuNodeStatus))
    for item in objects(server, "coordination.k8s.io/leases"):
        ledger.put_lease(msgspec.convert(item, Lease))
    ledger.claims.update(claims_of(server))
    return ledger


@pytest.mark.parametrize("at", [NOW, LATER])
async def test_the_webhook_asked_again_changes_and_refuses_nothing(at: float) -> None:
    async with shown(at) as (server, _):
        claims = claims_of(server)
        pods = list(claim_pods(server))
        assert len(pods) > 50
        for pod in pods:
            meta, spec = pod["metadata"], pod["spec"]
            claim = claims.get((meta["namespace"], meta["annotations"][CLAIM]))
            annotations = {k: v for k, v in meta["annotations"].items() if k not in (ALLOCATED, VISIBLE)}
            created = {**pod, "metadata": {**meta, "annotations": annotations}}
            again = admit_create(AdmissionRequest(uid="again", object=created), claim, PodRules())
            assert not again.refusal
            assert not again.patch, "the pod lacks something that the webhook sets"
            if not spec.get("nodeName"):
                assert not again.warnings
            update = admit_update(AdmissionRequest(uid="again", object=pod, old_object=pod), PodRules())
            assert (update.refusal, list(update.patch), list(update.warnings)) == ("", [], [])


async def test_every_claim_pod_has_scheduler_variables_and_allocation() -> None:
    async with shown(NOW) as (server, _):
        claims = claims_of(server)
        for pod in claim_pods(server):
            meta, spec = pod["metadata"], pod["spec"]
            assert spec["schedulerName"] == "simulated-scheduler"
            variables = {entry["name"]: entry for entry in spec["containers"][0]["env"]}
            assert VISIBLE in variables["CUDA_VISIBLE_DEVICES"]["valueFrom"]["fieldRef"]["fieldPath"]
            assert not spec["containers"][0].get("resources"), "a claim and a request would hold GPUs twice"
            bound = bool(spec.get("nodeName"))
            assert ({ALLOCATED, VISIBLE} <= meta["annotations"].keys()) == bound
            claim = claims.get((meta["namespace"], meta["annotations"][CLAIM]))
            gates = [gate["name"] for gate in spec.get("schedulingGates", ())]
            waits_for_gang = not bound and claim is not None and bool(claim.spec.gang_ref)
            assert gates == ([GANG_GATE] if waits_for_gang else [])


async def test_the_webhook_accepts_every_claim() -> None:
    async with shown(NOW) as (server, _):
        for item in objects(server, "gpu.scheduling/gpuclaims"):
            assert not validate_claim(AdmissionRequest(uid="claim", object=item)).refusal


@pytest.mark.parametrize("at", [NOW, LATER])
async def test_claim_statuses_equal_those_of_the_scheduler(at: float) -> None:
    async with shown(at) as (server, _):
        ledger, notes = filled_ledger(server), dict[str, str]()
        seen = set()
        for key, claim in ledger.claims.items():
            written = msgspec.json.decode(msgspec.json.encode(claim.status))
            note = claim.status.message.removeprefix("Pending: ")
            if claim.status.message.startswith("Pending: "):
                for pod in ledger.pods_of(*key):
                    notes[pod.metadata.uid] = note
            status = status_of(ledger, lambda pod: notes.get(pod.metadata.uid, ""), claim)
            expected = {name: value for name, value in status.items() if value is not None}
            if expected["message"] == "Pending: not tried yet":
                assert written.get("phase", "Pending") == "Pending"
                assert "message" not in written
                continue
            seen.add(claim.status.phase)
            expected = {
                name: value for name, value in expected.items() if (name, value) != ("phase", "Pending")
            }
            assert written == expected
        assert seen == {"Bound", "Pending"}


async def test_a_pending_claim_says_why_in_the_words_of_the_placement_core() -> None:
    async with shown(NOW) as (server, _):
        claims = [claim for claim in claims_of(server).values() if claim.status.phase == "Pending"]
        gangs = [claim.status.message for claim in claims if claim.spec.gang_ref and claim.status.message]
        assert gangs
        assert all("members fit; next member: 0/28 nodes fit: " in message for message in gangs)


async def test_a_run_waits_with_a_reason() -> None:
    runs = [
        run
        for run in SIMULATION.runs(NOW, NOW + DAY)
        if run.slot.pool and run.created > NOW and 600 < run.bound - run.created < DAY
    ]
    assert len(runs) > 3
    for run in runs[:4]:
        async with shown(run.bound - 60) as (server, player):
            claim = next(item for key, item in claims_of(server).items() if key[1] == run.name)
            assert claim.status.phase == "Pending"
            assert "nodes fit: " in claim.status.message
            pods = [
                pod for pod in claim_pods(server) if pod["metadata"]["uid"] in {p.uid for p in pods_of(run)}
            ]
            (condition,) = pods[0]["status"]["conditions"]
            assert condition["type"] == "PodScheduled"
            assert condition["status"] == "False"
            if not claim.spec.gang_ref:
                assert claim.status.message == f"Pending: {condition['message']}"
            await player.update(run.bound + 15)
            claim = next(item for key, item in claims_of(server).items() if key[1] == run.name)
            assert claim.status.phase == "Bound"


async def test_a_mig_gpu_has_one_lease_with_a_holder_for_each_instance_in_use() -> None:
    async with shown(NOW) as (server, player):
        for at in (NOW, NOW + 6 * 3600, NOW + 12 * 3600):
            await player.update(at)
            leases = {
                (lease.node, lease.gpu): lease
                for item in objects(server, "coordination.k8s.io/leases")
                if (lease := read_lease(msgspec.convert(item, Lease)))
            }
            expected: dict[tuple[str, int], dict[str, tuple[str, ...]]] = {}
            for run in SIMULATION.runs(at, at):
                position = run.slot.positions[0]
                if position.part is not None and run.bound <= at < run.ended:
                    key = (SIMULATION.hardware.machines[position.node].name, position.gpus[0])
                    expected.setdefault(key, {})[pods_of(run)[0].uid] = (str(position.part.id),)
            assert len(expected) > 2
            for key, holders in expected.items():
                assert {uid: h.instances for uid, h in leases[key].holders.items()} == holders
                assert not leases[key].foreign


@pytest.mark.parametrize("at", [NOW, LATER])
async def test_xid_79_makes_every_gpu_of_the_node_unhealthy(at: float) -> None:
    async with shown(at) as (server, _):
        hardware = SIMULATION.hardware
        (machine,) = (m for m in hardware.machines if hardware.lost_gpu(m, at) is not None)
        reports = {
            r["metadata"]["name"]: r["status"] for r in objects(server, "gpu.scheduling/gpunodestatuses")
        }
        status = reports[machine.name]
        assert {device["health"] for device in status["devices"]} == {"Unhealthy"}
        assert status["unhealthy"] == machine.gpus
        assert status.get("free", 0) == 0
        lost = status["devices"][hardware.lost_gpu(machine, at) or 0]
        assert lost["healthReason"].startswith("XID 79: the GPU fell off the bus")
        assert status["devices"][0]["healthReason"] == "GPU 3: XID 79: the GPU fell off the bus"
        running = [p for p in objects(server, "pods") if p["spec"].get("nodeName") == machine.name]
        assert all(pod["status"]["phase"] in ("Failed", "Succeeded") for pod in running)


async def test_islands_and_mig_instances_are_reported_as_by_the_agent() -> None:
    async with shown(NOW) as (server, _):
        islands: dict[str, set[tuple[int, ...]]] = {}
        for report in objects(server, "gpu.scheduling/gpunodestatuses"):
            sizes: dict[str, int] = {}
            for device in report["status"]["devices"]:
                sizes[device["island"]] = sizes.get(device["island"], 0) + 1
                if device.get("migInstances"):
                    assert device["island"].startswith("pcie-")
                    assert device.get("bandwidthGBps", 0) == 0
            islands.setdefault(report["metadata"]["name"].rpartition("-")[0], set()).add(
                tuple(sizes.values())
            )
        assert islands["h200"] == islands["mi300x"] == {(8,)}
        assert islands["h100"] == {(8,), (1, 1, 6)}
        assert islands["a100"] == {(4, 4), (1, 1, 2, 4)}
        assert islands["h100nvl"] == {(2, 2, 2, 2)}
        assert islands["l40s"] == {(1,) * 8}


async def test_owners_report_the_replicas_that_run() -> None:
    async with shown(NOW) as (server, player):
        counts: dict[str, set[int]] = {}
        for hour in range(0, 24, 2):
            await player.update(NOW + hour * 3600)
            pods = objects(server, "pods")
            for kind in ("deployments", "statefulsets"):
                for owner in objects(server, f"apps/{kind}"):
                    name = owner["metadata"]["name"]
                    mine = [
                        pod
                        for pod in pods
                        if pod["metadata"]["namespace"] == owner["metadata"]["namespace"]
                        and pod["metadata"]["name"].startswith(f"{name}-")
                    ]
                    assert owner["spec"]["replicas"] == owner["status"]["replicas"] == len(mine)
                    counts.setdefault(f"{kind}/{name}", set()).add(len(mine))
        for kind in ("deployments", "statefulsets"):
            assert any(len(seen) > 1 for name, seen in counts.items() if name.startswith(kind))
