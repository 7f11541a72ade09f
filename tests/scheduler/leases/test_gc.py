"""Garbage collection of leases on the embedded API, and waking of pending pods."""

import pytest
from tests.scheduler.stage import Stage, device, open_stage

from gpufleet.kubernetes import LEASES, CacheChange, Connection, KubeClient
from gpufleet.kubernetes.annotations import ALLOCATED, NUDGE
from gpufleet.kubernetes.client.resources import GPU_CLAIMS
from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.objects import Lease, LeaseSpec, ObjectMeta
from gpufleet.scheduler.leases.writer import PodRef
from kubelite import KubeLite


async def no_leases(stage: Stage) -> None:
    await stage.until(lambda: not stage.scheduler.ledger.leases)
    assert await stage.leases() == {}


async def test_the_gpus_of_a_deleted_pod_are_released_and_a_pending_pod_is_woken(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    first, second = await stage.pod("p", "one"), await stage.pod("q", "one")
    await stage.schedule(first)
    assert await stage.schedule(second) == ""
    await stage.delete(first)
    await stage.until(
        lambda: NUDGE in stage.scheduler.ledger.pods[second.metadata.uid].metadata.annotations, 2.0
    )
    assert await stage.leases() == {}, "the lease must be deleted before a pod is woken"
    assert await stage.schedule(second) == "a"


async def test_succeeded_and_failed_pods_hold_no_gpus(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    pods = [await stage.pod(f"p{at}", "one") for at in range(2)]
    for pod, phase in zip(pods, ("Succeeded", "Failed"), strict=True):
        await stage.schedule(pod)
        await stage.phase(pod, phase)
    await no_leases(stage)
    await stage.until(
        lambda: stage.scheduler.ledger.claims["default", "one"].status.message.startswith("No running")
    )


async def test_a_release_wakes_only_pods_that_fit(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    first = await stage.pod("p", "one")
    await stage.schedule(first)
    waiting = [await stage.pod(f"w{at}", "one") for at in range(3)]
    for pod in waiting:
        assert await stage.schedule(pod) == ""
    await stage.delete(first)
    await no_leases(stage)
    await stage.reconciled()
    woken = [pod.metadata.name for pod in waiting if NUDGE in (await stage.read(pod)).metadata.annotations]
    assert woken == ["w0"]


async def test_leases_of_a_pod_deleted_before_a_restart_are_released(
    server: KubeLite,
) -> None:
    async with open_stage(server) as stage:
        await stage.node("a")
        await stage.claim("two", 2)
        pod = await stage.pod("p", "two")
        await stage.schedule(pod)
    async with open_stage(server, grace=0.2) as again:
        assert len(await again.leases()) == 2
        await again.delete(pod)
        await no_leases(again)


async def test_leases_without_a_binding_are_reclaimed_after_the_grace_period(server: KubeLite) -> None:
    async with open_stage(server, grace=0.2, hold=1.0) as stage:
        await stage.node("a")
        await stage.claim("two", 2)
        pod = await stage.pod("p", "two")
        await stage.filter(pod)
        hold = stage.scheduler.ledger.holds[pod.metadata.uid]
        await stage.scheduler.lease_writer.reserve(PodRef(pod.metadata.uid, "default", "p", "two"), hold.fits)
        assert len(await stage.leases()) == 2
        await no_leases(stage)
        text = (await stage.raw("GET", "/metrics"))[1].decode()
        assert 'leases_recovered_total{why="not_bound"} 2.0' in text


async def test_a_foreign_lease_is_released_with_its_pod(stage: Stage) -> None:
    await stage.node("a")
    await stage.claim("one")
    pod = await stage.pod("p", nodeName="a")
    lease = Lease(
        ObjectMeta(name="gpu-a-0", namespace="default"), LeaseSpec(holder_identity=pod.metadata.uid)
    )
    await stage.client.create(LEASES, lease)
    await stage.until(lambda: "gpu-a-0" in stage.scheduler.ledger.leases)
    await stage.reconciled()
    assert list(await stage.leases()) == ["gpu-a-0"]
    await stage.delete(pod)
    await no_leases(stage)


async def test_a_foreign_lease_stays_while_its_pod_is_pending_or_running(server: KubeLite) -> None:
    async with open_stage(server, grace=0.2, hold=1.0) as stage:
        await stage.node("a")
        await stage.claim("one")
        waiting, running = await stage.pod("w", "one"), await stage.pod("r", "one")
        assert await stage.schedule(running) == "a"
        for gpu, pod in ((2, waiting), (3, running)):
            lease = Lease(
                ObjectMeta(name=f"gpu-a-{gpu}", namespace="default"),
                LeaseSpec(holder_identity=pod.metadata.uid),
            )
            await stage.client.create(LEASES, lease)
        await stage.until(lambda: {"gpu-a-2", "gpu-a-3"} <= stage.scheduler.ledger.leases.keys())
        # An unbound lease of our own: when it is reclaimed, the grace period of the others is over too.
        stray = await stage.pod("s", "one")
        await stage.filter(stray)
        fits = stage.scheduler.ledger.holds[stray.metadata.uid].fits
        await stage.scheduler.lease_writer.reserve(PodRef(stray.metadata.uid, "default", "s", "one"), fits)
        await stage.until(lambda: not stage.scheduler.ledger.leases_of(stray.metadata.uid), 10.0)
        assert sorted(await stage.leases()) == ["gpu-a-0", "gpu-a-2", "gpu-a-3"]


async def test_a_hold_expires(server: KubeLite) -> None:
    async with open_stage(server, hold=1.0) as stage:
        await stage.node("a", gpus=1)
        await stage.claim("one")
        first, second = await stage.pod("p", "one"), await stage.pod("q", "one")
        assert (await stage.filter(first))["NodeNames"] == ["a"]
        assert (await stage.filter(second))["NodeNames"] == []
        await stage.until(lambda: not stage.scheduler.ledger.holds)
        assert await stage.schedule(second) == "a"


async def test_a_claim_created_later_wakes_its_pod(stage: Stage) -> None:
    await stage.node("a")
    pod = await stage.pod("p", "late")
    refused = await stage.filter(pod)
    assert "GpuClaim default/late does not exist" in refused["FailedAndUnresolvableNodes"]["a"]
    await stage.claim("late")
    await stage.until(lambda: NUDGE in stage.scheduler.ledger.pods[pod.metadata.uid].metadata.annotations)


async def test_an_uncordoned_node_wakes_pending_pods(stage: Stage) -> None:
    await stage.node("a")
    await stage.client.write_json(
        "PATCH", "/api/v1/nodes/a", {"spec": {"unschedulable": True}}, "application/merge-patch+json"
    )
    await stage.until(lambda: stage.scheduler.ledger.cluster.nodes["a"].cordoned)
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    assert await stage.schedule(pod) == ""
    await stage.client.write_json(
        "PATCH", "/api/v1/nodes/a", {"spec": {"unschedulable": None}}, "application/merge-patch+json"
    )
    await stage.until(lambda: NUDGE in stage.scheduler.ledger.pods[pod.metadata.uid].metadata.annotations)
    assert await stage.schedule(pod) == "a"


async def test_a_lease_deleted_under_a_running_pod_is_recreated(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    pod = await stage.pod("p", "one")
    assert await stage.schedule(pod) == "a"
    before = (await stage.leases())["gpu-a-0"]
    await stage.client.delete(LEASES, "gpu-a-0", "default")

    def is_back() -> bool:
        known = stage.scheduler.ledger.leases.get("gpu-a-0")
        return known is not None and known.object.metadata.uid != before.metadata.uid

    await stage.until(is_back)
    assert (await stage.leases())["gpu-a-0"].spec.holder_identity == pod.metadata.uid
    assert await stage.schedule(await stage.pod("q", "one")) == ""
    await stage.delete(pod)
    await no_leases(stage)


async def test_leases_are_recreated_for_a_mig_instance_and_for_a_pod_without_its_claim(
    stage: Stage,
) -> None:
    instances = [{"id": at, "profile": "1g.10gb", "uuid": f"MIG-{at}"} for at in range(2)]
    await stage.node("a", devices=[device(0, migInstances=instances), device(1)])
    await stage.claim("slice", exclusivity="MIG", migProfile="1g.10gb")
    await stage.claim("one")
    slices = [await stage.pod(f"slice{at}", "slice") for at in range(2)]
    for pod in (*slices, whole := await stage.pod("whole", "one")):
        assert await stage.schedule(pod) == "a"
    before = await stage.leases()
    await stage.client.delete(GPU_CLAIMS, "one", "default")
    await stage.until(lambda: ("default", "one") not in stage.scheduler.ledger.claims)
    for name in before:
        await stage.client.delete(LEASES, name, "default")
    ledger = stage.scheduler.ledger

    def holders(name: str) -> dict[str, tuple[int, tuple[str, ...]]]:
        lease = ledger.leases.get(name)
        return {uid: (part.milli, part.instances) for uid, part in lease.holders.items()} if lease else {}

    mine = {pod.metadata.uid: (0, (str(at),)) for at, pod in enumerate(slices)}
    await stage.until(lambda: holders("gpu-a-0") == mine)
    await stage.until(lambda: holders("gpu-a-1") == {whole.metadata.uid: (1000, ())})
    assert {lease.metadata.uid for lease in (await stage.leases()).values()}.isdisjoint(
        lease.metadata.uid for lease in before.values()
    )


async def test_leases_deleted_before_a_restart_are_recreated(server: KubeLite) -> None:
    async with open_stage(server) as stage:
        await stage.node("a")
        await stage.claim("two", 2)
        pod = await stage.pod("p", "two")
        await stage.schedule(pod)
    async with KubeClient(Connection(server.url, token=server.token)) as client:
        await client.delete(LEASES, "gpu-a-1", "default")
    async with open_stage(server) as again:
        await again.until(lambda: set(again.scheduler.ledger.leases) == {"gpu-a-0", "gpu-a-1"})


async def test_an_invalid_claim_does_not_affect_other_pods(stage: Stage) -> None:
    """Such as one created before the CRD had its rules."""
    await stage.node("a")
    nonsense = CacheChange(
        None,
        GpuClaim(
            metadata=ObjectMeta(name="odd", namespace="default"),
            spec=ClaimSpec(ClaimDevices(1, exclusivity="MIG"), gang_ref="g"),
        ),
    )
    stage.scheduler.watch_events.on_claims([nonsense])
    await stage.group("g", 1)
    pod = await stage.pod("p", "odd")
    assert await stage.schedule(pod) == ""
    await stage.reconciled()
    await stage.claim("one")
    assert await stage.schedule(await stage.pod("q", "one")) == "a"
    assert not stage.replica.unready()


async def test_deleting_a_pod_with_a_hold_wakes_pending_pods(stage: Stage) -> None:
    await stage.node("a", gpus=1)
    await stage.claim("one")
    first, second = await stage.pod("p", "one"), await stage.pod("q", "one")
    assert (await stage.filter(first))["NodeNames"] == ["a"]
    assert await stage.schedule(second) == ""
    await stage.delete(first)
    await stage.until(lambda: NUDGE in stage.scheduler.ledger.pods[second.metadata.uid].metadata.annotations)
    assert await stage.schedule(second) == "a"


async def test_a_claim_changed_to_fewer_gpus_wakes_its_pod(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("many", 4)
    pod = await stage.pod("p", "many")
    assert await stage.schedule(pod) == ""
    await stage.client.write_json(
        "PATCH",
        "/apis/gpu.scheduling/v1/namespaces/default/gpuclaims/many",
        {"spec": {"devices": {"count": 2}}},
        "application/merge-patch+json",
    )
    await stage.until(lambda: NUDGE in stage.scheduler.ledger.pods[pod.metadata.uid].metadata.annotations)
    assert await stage.schedule(pod) == "a"


async def test_a_terminating_pod_with_a_finalizer_is_not_woken_instead_of_another(stage: Stage) -> None:
    """Pods of a Job have one."""
    await stage.node("a", gpus=1)
    await stage.claim("one")
    running = await stage.pod("p", "one")
    assert await stage.schedule(running) == "a"
    leaving, waiting = await stage.pod("q", "one"), await stage.pod("r", "one")
    for pod in (leaving, waiting):
        assert await stage.schedule(pod) == ""
    path = "/api/v1/namespaces/default/pods/q"
    kept = {"metadata": {"finalizers": ["batch.kubernetes.io/job-tracking"]}}
    await stage.client.write_json("PATCH", path, kept, "application/merge-patch+json")
    await stage.delete(leaving)
    ledger = stage.scheduler.ledger
    await stage.until(lambda: ledger.pods[leaving.metadata.uid].metadata.deletion_timestamp)
    await stage.delete(running)
    await stage.until(lambda: NUDGE in ledger.pods[waiting.metadata.uid].metadata.annotations)
    gone = {"metadata": {"finalizers": None}}
    await stage.client.write_json("PATCH", path, gone, "application/merge-patch+json")


@pytest.mark.parametrize("allocated", ["a:", "a:²", "a:" + "9" * 5000, "a:x,,-1", ":0", "a"])
async def test_a_malformed_allocation_does_not_affect_other_pods(stage: Stage, allocated: str) -> None:
    await stage.node("a")
    await stage.claim("one")
    odd = await stage.pod("odd", "one", nodeName="a")
    await stage.client.write_json(
        "PATCH",
        "/api/v1/namespaces/default/pods/odd",
        {"metadata": {"annotations": {ALLOCATED: allocated}}},
        "application/merge-patch+json",
    )
    await stage.until(lambda: ALLOCATED in stage.scheduler.ledger.pods[odd.metadata.uid].metadata.annotations)
    pod = await stage.pod("p", "one")
    assert await stage.schedule(pod) == "a"
    status = stage.scheduler.ledger.claims
    await stage.until(
        lambda: [each.pod_name for each in status["default", "one"].status.allocations] == ["p"]
    )
    assert not stage.replica.unready()


async def test_a_pod_with_a_foreign_lease_is_woken_too(stage: Stage) -> None:
    await stage.node("a", gpus=2)
    await stage.claim("one")
    await stage.claim("two", 2)
    running, waiting = await stage.pod("p", "one"), await stage.pod("q", "two")
    assert await stage.schedule(running) == "a"
    lease = Lease(
        ObjectMeta(name="gpu-a-1", namespace="default"), LeaseSpec(holder_identity=waiting.metadata.uid)
    )
    await stage.client.create(LEASES, lease)
    await stage.until(lambda: "gpu-a-1" in stage.scheduler.ledger.leases)
    assert await stage.schedule(waiting) == ""
    await stage.delete(running)
    await stage.until(lambda: NUDGE in stage.scheduler.ledger.pods[waiting.metadata.uid].metadata.annotations)
    assert await stage.schedule(waiting) == "a"
