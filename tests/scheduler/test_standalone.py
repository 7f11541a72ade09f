"""The stand-alone loop on the embedded API."""

from msgspec import structs
from tests.scheduler.stage import Stage, open_stage
from tests.scheduler.world import Process, World

from gpufleet.kubernetes.objects import Container, Node, NodeStatusFields, ObjectMeta, PodSpec, Resources
from gpufleet.scheduler.standalone import Standalone
from kubelite import KubeLite


async def bound(stage: Stage, *names: str) -> dict[str, str]:
    def done() -> bool:
        pods = {pod.metadata.name: pod.spec.node_name for pod in stage.scheduler.ledger.pods.values()}
        return all(pods.get(name) for name in names)

    await stage.until(done)
    return {
        pod.metadata.name: pod.spec.node_name
        for pod in stage.scheduler.ledger.pods.values()
        if pod.metadata.name in names
    }


async def test_pods_are_bound_and_freed_gpus_go_to_the_next_pod(server: KubeLite) -> None:
    async with open_stage(server, standalone=True) as stage:
        await stage.node("a", gpus=2)
        await stage.claim("two", 2)
        first = await stage.pod("first", "two")
        assert await bound(stage, "first") == {"first": "a"}
        await stage.pod("second", "two")
        await stage.delete(first)
        assert await bound(stage, "second") == {"second": "a"}


async def test_cpu_memory_taints_and_other_schedulers_are_respected(server: KubeLite) -> None:
    async with open_stage(server, standalone=True) as stage:
        await stage.node("small", allocatable={"cpu": "1", "memory": "1Gi"})
        await stage.claim("one")
        await stage.pod("other", "one", schedulerName="default-scheduler")
        hungry = {"resources": {"requests": {"cpu": "2"}}}
        await stage.pod("hungry", "one", containers=[{"name": "c", "image": "i", **hungry}])
        await stage.pod("modest", "one")
        await bound(stage, "modest")
        await stage.node("large", allocatable={"cpu": "8", "memory": "8Gi"})
        assert await bound(stage, "hungry") == {"hungry": "large"}
        unbound = [
            pod.metadata.name for pod in stage.scheduler.ledger.pods.values() if not pod.spec.node_name
        ]
        assert unbound == ["other"]


async def test_a_gang_is_bound_together(server: KubeLite) -> None:
    async with open_stage(server, standalone=True) as stage:
        await stage.node("a", gpus=2)
        await stage.node("b", gpus=2)
        await stage.group("g", 2)
        await stage.claim("of-g", 2, spec={"gangRef": "g"})
        await stage.pod("m0", "of-g")
        await stage.pod("m1", "of-g")
        assert set((await bound(stage, "m0", "m1")).values()) == {"a", "b"}


async def test_nothing_is_reserved_for_a_gang_that_another_scheduler_binds(server: KubeLite) -> None:
    async with open_stage(server, standalone=True) as stage:
        await stage.node("a", gpus=2)
        await stage.group("theirs", 2)
        await stage.claim("of-theirs", 1, spec={"gangRef": "theirs"})
        for name in ("t0", "t1"):
            await stage.pod(name, "of-theirs", schedulerName="another-scheduler")
        await stage.claim("two", 2)
        await stage.pod("mine", "two")
        assert await bound(stage, "mine") == {"mine": "a"}
        assert not stage.scheduler.gangs.plans


def test_the_cpu_of_a_pod_that_is_being_bound_counts_as_used() -> None:
    world = World({"a": 4})
    world.write("nodes", Node(ObjectMeta(name="a"), status=NodeStatusFields(allocatable={"cpu": "4"})))
    world.add_claim("one", count=1)
    spec = PodSpec(scheduler_name="s", containers=(Container(resources=Resources({"cpu": "3"})),))
    for name in ("p", "q"):
        world.write("pods", structs.replace(world.add_pod(name, "one"), spec=spec))
    process = Process(world)
    loop = Standalone(process.scheduler, "s")

    async def reconcile_with(now: float) -> None:
        loop.step(now)

    for now in (0.0, 3.0, 6.0):
        world.loop.run_until_complete(reconcile_with(now))
        world.settle()
    assert [call.name for call in world.calls] == ["create lease gpu-a-0"], "the other has no CPU left"
    while world.calls:
        world.resolve(world.calls[0], "done")
    assert world.pod("p").spec.node_name == "a"  # type: ignore[union-attr]
    # The watch has not delivered the bound pod yet.
    world.loop.run_until_complete(reconcile_with(9.0))
    world.settle()
    assert world.calls == []
    process.kill()
    world.loop.close()
