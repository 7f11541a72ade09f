"""A simulated machine, an embedded Kubernetes API with the CRDs, and agents."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pynvml  # noqa: F401 - imported before the clock of a deadline runs
import pytest
from tests.shim.nvml import nvml_shim

from gpufleet.agent.agent import Agent
from gpufleet.kubernetes import GPU_NODE_STATUSES, KubeClient, load_connection
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.runtime.settings import AgentSettings, DevicesSettings
from kubelite import KubeLite

__all__ = ["nvml_shim"]


@dataclass
class Cluster:
    """The API, a client of it, and the agents that publish to it."""

    server: KubeLite
    client: KubeClient

    async def status(self, node: str) -> GpuNodeStatus:
        return await self.client.get(GPU_NODE_STATUSES, node)

    async def until(
        self, node: str, is_so: Callable[[GpuNodeStatus], bool], seconds: float = 20
    ) -> GpuNodeStatus:
        """Wait until `is_so` holds for the published status."""
        deadline = time.monotonic() + seconds
        last: object = "nothing published"
        while time.monotonic() < deadline:
            page = await self.client.list(GPU_NODE_STATUSES)
            for found in page.items:
                if found.metadata.name == node:
                    last = found
                    if found.status.devices and is_so(found):
                        return found
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {seconds:g} s; last seen: {last}")

    @asynccontextmanager
    async def agent(self, node: str = "node-a", **options: object) -> AsyncIterator[Agent]:
        """An agent of `node`, at work."""
        settings = {"period": 0.2, "kubelet": None, "pod_logs": None, **options}
        deadline, check = settings.pop("deadline", 10.0), float(str(settings.pop("lease_check", 0.5)))
        devices = DevicesSettings(reader="nvml", deadline=float(str(deadline)), kernel_log=False)
        own = AgentSettings(port=0, **settings)  # type: ignore[arg-type]
        agent = Agent(node, own, devices, self.client, "gpufleet", lease_check=check)
        async with AsyncExitStack() as closing:
            closing.push_async_callback(agent.close)
            tasks = [asyncio.create_task(_run(work)) for work in agent.tasks().values()]
            try:
                yield agent
                assert [task.exception() for task in tasks if task.done()] == []
            finally:
                for task in tasks:
                    task.cancel()
                async with asyncio.timeout(20):
                    await asyncio.gather(*tasks, return_exceptions=True)


async def _run(work: object) -> None:
    assert callable(work)
    await work()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with KubeLite() as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        connection = load_connection(str(tmp_path / "kubeconfig"))
        async with KubeClient(connection, requests_per_second=500, burst=500) as client:
            for definition in definitions():
                await client.write_json(
                    "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition
                )
            for name in ("gpufleet", "jobs"):
                await client.write_json("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
            yield Cluster(server, client)
