"""Scrape agents on real sockets, found in the EndpointSlices of a real API, into a real database."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from tests.waiting import wait_until

from gpufleet.agent.exporter import Exporter
from gpufleet.agent.monitor import Observation
from gpufleet.errors import MetricsUnavailable
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.exporters.scraping import AgentScraper
from gpufleet.exporters.scraping.endpoints import AgentEndpoint, agent_endpoints
from gpufleet.exporters.scraping.exposition import decode
from gpufleet.exporters.scraping.scraper import MAX_BYTES, MAX_SCRAPES
from gpufleet.kubernetes import KubeClient, load_connection
from gpufleet.kubernetes.objects import Endpoint, EndpointConditions, EndpointPort, EndpointSlice
from gpufleet.model.device import Device, DeviceProcess, DeviceReading, Vendor
from gpufleet.model.reading import FaultKind, GpuProcess, GpuRef, Quantity, Readings
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.store import Store
from kubelite import KubeLite

NAMESPACE = "gpu-system"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
LABELS = {"app.kubernetes.io/part-of": "gpufleet", "app.kubernetes.io/component": "agent"}
TRAINING = 'gpufleet_training{metric="loss",pod_uid="p",rank="0",workload_uid="w"} 2.5 1800000000500\n'


def metrics_of(node: str, *, gpus: int = 2, busy: float = 90.0, command: str = "python") -> str:
    """Return what an agent with some GPUs serves."""
    now = time.time()
    uuids = [f"GPU-{node}-{index}" for index in range(gpus)]
    observation = Observation(
        devices=tuple(
            Device(i, uuid, Vendor.NVIDIA, "NVIDIA H100 80GB HBM3") for i, uuid in enumerate(uuids)
        ),
        readings=tuple(
            DeviceReading(uuid, i, now, utilization_percent=busy, memory_used_bytes=2**30, power_watts=400.5)
            for i, uuid in enumerate(uuids)
        ),
        processes=(DeviceProcess(uuids[0], 0, 4711, name=command, gpu_memory_bytes=2**30),),
        xids={(uuids[1], 48): 2} if gpus > 1 else {},
        read_at=now,
    )
    return Exporter(node, lambda: observation).render().decode()


@dataclass
class FakeAgent:
    """An HTTP server on an address of its own, as the pod of an agent has one."""

    node: str
    address: str
    text: str = ""
    status: int = 200
    delay: float = 0.0
    requests: int = 0
    active: int = 0
    most_active: int = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.requests += 1
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            await asyncio.sleep(self.delay)
        finally:
            self.active -= 1
        return web.Response(text=self.text, status=self.status)


@dataclass
class Agents:
    """The agents of a cluster, and a scraper that reads them."""

    client: KubeClient
    metrics: EmbeddedMetrics
    port: int = 0
    running: dict[str, FakeAgent] = field(default_factory=dict)

    async def start(self, stack: AsyncExitStack, node: str, text: str | None = None) -> FakeAgent:
        """Start the agent of a node on the next address of loopback, at the same port as the others."""
        agent = FakeAgent(
            node, f"127.0.0.{len(self.running) + 2}", metrics_of(node) if text is None else text
        )
        app = web.Application()
        app.router.add_get("/metrics", agent.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, agent.address, self.port)
        await site.start()
        self.port = runner.addresses[0][1]
        self.running[node] = agent
        return agent

    async def publish(self, *agents: FakeAgent, ready: bool = True) -> None:
        """Write the EndpointSlice of some agents, as the endpoint slice controller would."""
        endpoints = [
            {"addresses": [each.address], "nodeName": each.node, "conditions": {"ready": ready}}
            for each in agents
        ]
        body: dict[str, Any] = {
            "metadata": {"name": f"agents-{'-'.join(each.node for each in agents)}", "labels": LABELS},
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "metrics", "port": self.port, "protocol": "TCP"}],
        }
        await self.client.write_json("POST", SLICES, body)

    @asynccontextmanager
    async def scraping(self, max_scrapes: int = MAX_SCRAPES, **settings: Any) -> AsyncIterator[AgentScraper]:
        """Run the scraper of a server."""
        own = MetricsSettings(**{"refresh": 1.0, "timeout": 2.0, **settings})
        scraper = AgentScraper(self.client, NAMESPACE, self.metrics, own, max_scrapes=max_scrapes)
        task = asyncio.create_task(scraper.run())
        try:
            yield scraper
            assert not task.done(), task.exception()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def read(self, gpus: int) -> Readings:
        """Wait until the readings have so many GPUs."""

        async def found() -> Readings | None:
            readings = await self.metrics.latest()
            return readings if len(readings) == gpus else None

        result: Readings | None = await wait_until(found)
        assert result is not None
        return result

    async def processes(self) -> tuple[GpuProcess, ...]:
        """Wait until there are processes, and return them."""

        async def found() -> tuple[GpuProcess, ...]:
            return (await self.metrics.processes()).rows

        rows: tuple[GpuProcess, ...] = await wait_until(found)
        return rows


@pytest.fixture
async def agents(store: Store, tmp_path: Path) -> AsyncIterator[Agents]:
    async with KubeLite() as server:
        server.write_kubeconfig(tmp_path / "kubeconfig")
        async with KubeClient(load_connection(str(tmp_path / "kubeconfig"))) as client:
            await client.write_json("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            yield Agents(client, EmbeddedMetrics("here", store.readings, store.training, MetricsSettings()))


async def test_the_readings_of_all_agents_are_recorded(agents: Agents, store: Store) -> None:
    async with AsyncExitStack() as stack:
        first, second = await agents.start(stack, "node-a"), await agents.start(stack, "node-b")
        await agents.publish(first, second)
        async with agents.scraping():
            readings = await agents.read(4)
            refs = [GpuRef(node, index) for node in ("node-a", "node-b") for index in (0, 1)]
            assert [gpu.ref for gpu in readings.gpus] == refs
            assert readings.gpus[3].uuid == "GPU-node-b-1"
            assert readings.gpus[3].model == "NVIDIA_H100_80GB_HBM3"
            assert readings.value(0, Quantity.UTILIZATION) == 90.0
            assert readings.value(3, Quantity.POWER) == 400.5
            assert readings.value(0, Quantity.TEMPERATURE) is None
            assert [(fault.kind, fault.code, fault.count) for fault in readings.faults[1]] == [
                (FaultKind.XID, 48, 2)
            ]
            assert readings.errors == {}
            processes = await agents.processes()
            assert [(row.gpu, row.pid, row.name) for row in processes] == [
                (GpuRef("node-a", 0), 4711, "python"),
                (GpuRef("node-b", 0), 4711, "python"),
            ]

            async def stored() -> bool:
                series = await agents.metrics.series(
                    Quantity.POWER, [GpuRef("node-b", 1)], time.time() - 10, time.time(), 1
                )
                return bool(series and 400.5 in series[0].values)

            await wait_until(stored)


async def test_an_agent_that_fails_does_not_affect_the_others(agents: Agents) -> None:
    async with AsyncExitStack() as stack:
        _good, slow, broken, large, down = [
            await agents.start(stack, node) for node in ("good", "slow", "broken", "large", "down")
        ]
        slow.delay, broken.text, down.status = (
            3.0,
            'nvidia_gpu_power_watts{node="broken",gpu="0"} nonsense\n',
            503,
        )
        large.text = "#" * (MAX_BYTES + 1)
        await agents.publish(*agents.running.values())
        async with agents.scraping(timeout=0.5) as scraper:
            readings = await agents.read(2)
            assert {gpu.ref.node for gpu in readings.gpus} == {"good"}
            assert scraper.failures >= 4
            assert readings.errors["agents"].startswith("4 of 5 agents could not be read (broken: ")
            slow.delay, broken.text, large.text = 0.0, metrics_of("broken"), metrics_of("large")
            down.status = 200
            assert (await agents.read(10)).errors == {}


async def test_agents_come_and_go_with_their_endpoints(agents: Agents) -> None:
    async with AsyncExitStack() as stack, agents.scraping():
        first = await agents.start(stack, "node-a")
        await agents.publish(first)
        await agents.read(2)
        second = await agents.start(stack, "node-b")
        await agents.publish(second)
        await agents.read(4)
        await agents.client.write_json("DELETE", f"{SLICES}/agents-node-a", None)
        readings = await agents.read(2)
        assert {gpu.ref.node for gpu in readings.gpus} == {"node-b"}


async def test_endpoints_of_other_services_are_not_read(agents: Agents) -> None:
    async with AsyncExitStack() as stack:
        agent, other = await agents.start(stack, "node-a"), await agents.start(stack, "other")
        await agents.publish(agent)
        body = {
            "metadata": {"name": "other", "labels": {"app.kubernetes.io/component": "agent"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [other.address], "nodeName": "other"}],
            "ports": [{"name": "metrics", "port": agents.port, "protocol": "TCP"}],
        }
        await agents.client.write_json("POST", SLICES, body)
        async with agents.scraping():
            await agents.read(2)
            await wait_until(lambda: agent.requests > 1)
            assert other.requests == 0


async def test_at_most_max_scrapes_agents_are_read_at_the_same_time(agents: Agents) -> None:
    async with AsyncExitStack() as stack:
        agent = await agents.start(stack, "node-0")
        agent.delay = 0.02
        same = [FakeAgent(f"node-{index}", agent.address) for index in range(20)]
        await agents.publish(*same)
        async with agents.scraping(max_scrapes=3):
            await wait_until(lambda: agent.requests >= 20)
        assert agent.most_active == 3


async def test_gpus_of_another_node_are_left_out(agents: Agents) -> None:
    async with AsyncExitStack() as stack:
        liar = await agents.start(stack, "node-a", metrics_of("node-a", gpus=1) + metrics_of("node-b"))
        await agents.publish(liar)
        async with agents.scraping():
            readings = await agents.read(1)
            assert [gpu.ref for gpu in readings.gpus] == [GpuRef("node-a", 0)]
            assert readings.faults == {}
            assert {row.gpu.node for row in await agents.processes()} == {"node-a"}


async def test_training_numbers_of_logs_are_stored_once(agents: Agents) -> None:
    async with AsyncExitStack() as stack:
        agent = await agents.start(stack, "node-a", metrics_of("node-a") + TRAINING)
        await agents.publish(agent)
        async with agents.scraping():

            async def points(uid: str, *controllers: str) -> list[tuple[str, float, float, int | None]]:
                found = await agents.metrics.training(uid, 1.79e9, 1.81e9, controllers)
                return [(each.metric, each.value, each.time, each.rank) for each in found]

            assert await wait_until(lambda: points("w")) == [("loss", 2.5, 1_800_000_000.5, 0)]
            agent.text = metrics_of("node-a") + TRAINING.replace("2.5 1800000000500", "2.25 1800000001000")
            await wait_until(lambda: _longer(points("w"), 2))
            assert await points("deployment", "w") == await points("w")


async def _longer(points: Any, length: int) -> bool:
    return len(await points) >= length


def test_endpoints_that_are_not_ready_have_no_readings() -> None:
    def endpoint(address: str, node: str, ready: bool | None = None) -> Endpoint:
        return Endpoint((address,), EndpointConditions(ready), node)

    slices = [
        EndpointSlice(
            endpoints=(
                endpoint("10.0.0.2", "b", True),
                endpoint("10.0.0.3", "c", False),
                endpoint("10.0.0.4", ""),
                Endpoint((), node_name="d"),
            ),
            ports=(EndpointPort("other", 1), EndpointPort("metrics", 9401)),
        ),
        EndpointSlice(endpoints=(endpoint("fd00::1", "a"),), ports=(EndpointPort("metrics", 9401),)),
        EndpointSlice(endpoints=(endpoint("10.0.0.9", "z"),), ports=None),
        EndpointSlice(endpoints=None, ports=(EndpointPort("metrics", 9401),)),
    ]
    assert agent_endpoints(slices) == [
        AgentEndpoint("a", "http://[fd00::1]:9401/metrics"),
        AgentEndpoint("b", "http://10.0.0.2:9401/metrics"),
    ]


def test_the_decoder_agrees_with_the_parser_of_prometheus() -> None:
    strange = 'tr"icky} 1 \\ {"\nname'
    text = metrics_of("node-a", command=strange)
    found = decode(text, "node-a", 5.0, {})
    expected = {
        (sample.name, sample.labels["gpu"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in ("nvidia_gpu_power_watts", "nvidia_gpu_used_memory_bytes")
    }
    assert expected == {
        (name, str(ref.index)): value
        for name, quantity in (
            ("nvidia_gpu_power_watts", Quantity.POWER),
            ("nvidia_gpu_used_memory_bytes", Quantity.MEMORY_USED),
        )
        for ref, value in found.values[quantity].items()
    }
    assert [process.name for process in found.processes] == [strange]
    again = decode(text, "node-a", 6.0, found.labels)
    assert again.values == found.values
    assert all(again.labels[each] is found.labels[each] for each in again.labels)


@pytest.mark.parametrize("sample", ["", "x", "1 y"])
def test_a_malformed_sample_is_an_error(sample: str) -> None:
    with pytest.raises(MetricsUnavailable, match="malformed sample"):
        decode(f'nvidia_gpu_power_watts{{node="a",gpu="0"}} {sample}\n', "a", 1.0, {})
