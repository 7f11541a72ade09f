"""GPUs on which a deleted pod may still have processes."""

from tests.scheduler.stage import device, open_stage

from gpufleet.kubernetes import PODS, Connection, KubeClient
from kubelite import KubeLite


async def test_a_gpu_of_a_pod_that_vanished_while_no_scheduler_ran_is_draining(server: KubeLite) -> None:
    """Such as a pod that was deleted by force: its processes may still run."""
    async with open_stage(server) as stage:
        await stage.node("a", gpus=1)
        await stage.claim("one")
        pod = await stage.pod("p", "one")
        assert await stage.schedule(pod) == "a"
        await stage.report("a", [device(0, inUseBy=[pod.metadata.uid])])
    async with KubeClient(Connection(server.url, token=server.token)) as client:
        await client.delete(PODS, "p", "default", grace_seconds=0)
    async with open_stage(server) as again:
        await again.until(lambda: not again.scheduler.ledger.leases)
        next_pod = await again.pod("q", "one")
        assert await again.schedule(next_pod) == ""
        assert again.scheduler.planner.reason(next_pod).endswith("; draining: a:0")
        await again.report("a", [device(0)])
        await again.until(lambda: not again.scheduler.ledger.draining())
        assert await again.schedule(next_pod) == "a"
