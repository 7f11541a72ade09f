"""Bodies of answers that arrive in many segments, as on a network, and that are larger than expected.

Every client reads the same content from a server behind a proxy that sends segments of 1,448 bytes.
"""

import asyncio
import gzip
import json
import random
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.segments import segmented

from gpufleet.errors import GpufleetError, MetricsUnavailable, Unavailable
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.exporters.prometheus.client import PrometheusClient
from gpufleet.exporters.scraping.endpoints import AgentEndpoint
from gpufleet.exporters.scraping.scraper import AgentScraper
from gpufleet.kubernetes import LEASES, Connection, KubeClient, Timing
from gpufleet.runtime.response_body import BodyReader
from gpufleet.runtime.settings import (
    DockerSettings,
    MetricsSettings,
    OidcSettings,
    SchedulerSettings,
    SlurmSettings,
)
from gpufleet.scheduler.queues.gpu_queues import GpuQueues
from gpufleet.scheduler.queues.start_reader import StartReader
from gpufleet.scheduler.queues.use_reader import UseReader
from gpufleet.scheduler.state import Ledger
from gpufleet.server.auth.oidc.provider import Provider
from gpufleet.sources.docker.engine import Engine
from gpufleet.sources.slurm.rest import SlurmRest

MB = 1024 * 1024
LARGE = 512 * 1024
Read = Callable[[str], Awaitable[object]]
"""Reads from the server at a URL, and returns something from the end of the answer."""


class Upstream:
    """A server that answers every request with one body."""

    def __init__(self) -> None:
        self.body = b""
        self.encoding = ""
        self.status = 200

    async def answer(self, request: web.Request) -> web.Response:
        await request.read()
        headers = {"Content-Encoding": self.encoding} if self.encoding else {}
        return web.Response(
            body=self.body, status=self.status, headers=headers, content_type="application/json"
        )

    @asynccontextmanager
    async def serving(self, pause: float = 0.001) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        async with TestServer(app, host="127.0.0.1") as server:
            assert server.port is not None
            async with segmented("127.0.0.1", server.port, pause) as url:
                yield url

    def send(self, content: dict[str, Any] | bytes, size: int, *, compressed: bool) -> None:
        """Answer with `content` behind random text, so that the end is missing where a part is read."""
        text = random.Random(1).randbytes(size // 2).hex()
        if isinstance(content, bytes):
            self.body = b"# " + text.encode() + b"\n" + content
        else:
            self.body = json.dumps({"padding": text, **content}).encode()
        if compressed:
            self.body, self.encoding = gzip.compress(self.body, 1), "gzip"


AMOUNT = {"gpu_hours": 2.0, "cost": 7.0}
USE = {
    "cluster_name": "prod",
    "until": "2026-10-05T13:00:00Z",
    "day_start": "2026-10-05T00:00:00Z",
    "week_start": "2026-10-05T00:00:00Z",
    "month_start": "2026-10-01T00:00:00Z",
    "namespaces": [
        {"namespace": "ml", "decayed_gpu_hours": 1.5, "day": AMOUNT, "week": AMOUNT, "month": AMOUNT}
    ],
    "prices": {"": 3.5},
}


async def use_of_namespaces(url: str) -> object:
    queues = GpuQueues(Ledger(), Timing(), 3600)
    reader = UseReader(queues, SchedulerSettings(server_url=url), Timing())
    async with reader._server.session() as session:
        await reader.read(session)
    assert reader.problem == ""
    return queues.reading.decayed


async def expected_starts(url: str) -> object:
    changed: list[tuple[str, str]] = []
    reader = StartReader(
        SchedulerSettings(server_url=url), Timing(), lambda: True, lambda *key: changed.append(key)
    )
    async with reader._server.session() as session:
        await reader.read(session)
    return changed


async def prometheus(url: str) -> object:
    async with PrometheusClient(MetricsSettings(url=url)) as client:
        return json.loads(await client.instant("up", 0))["data"]


async def agent(url: str) -> object:
    recorder: EmbeddedMetrics = None  # type: ignore[assignment]  # nothing is recorded here
    client = KubeClient(Connection("http://127.0.0.1:1"))
    scraper = AgentScraper(client, "gpufleet", recorder, MetricsSettings())
    async with aiohttp.ClientSession() as session:
        return list((await scraper._read(session, AgentEndpoint("node-a", f"{url}/metrics"))).training)


async def slurm(url: str) -> object:
    rest = SlurmRest(SlurmSettings(url=url))
    try:
        return [job.job_id for job in await rest.jobs()]
    finally:
        await rest.close()


async def engine(url: str) -> object:
    client = Engine(DockerSettings(url=url))
    try:
        return (await client.info()).name
    finally:
        await client.close()


async def identity_provider(url: str) -> object:
    async with Provider(OidcSettings(issuer=url, client_id="gpufleet")) as provider:
        return await provider.keys(None)


async def kubernetes(url: str) -> object:
    async with KubeClient(Connection(url)) as client:
        return (await client.get(LEASES, "one", "default")).metadata.name


UNIT = {"namespace": "ml", "estimate": {"expectedStart": "2100-01-01T00:00:00Z"}, "claims": ["train"]}
ENDPOINTS = ("authorization_endpoint", "token_endpoint", "jwks_uri")
LEASE = {"metadata": {"name": "one", "namespace": "default"}, "spec": {}}
TRAINING = b'gpufleet_training{metric="loss",pod_uid="p",rank="0",workload_uid="w"} 2.5 1800000000500\n'
CLIENTS: dict[str, tuple[Read, Callable[[str], dict[str, Any] | bytes], object]] = {
    "use": (use_of_namespaces, lambda url: {"data": USE}, {"ml": 5400.0}),
    "starts": (expected_starts, lambda url: {"data": {"data": [UNIT]}}, [("ml", "train")]),
    "prometheus": (prometheus, lambda url: {"data": [1]}, [1]),
    "agent": (agent, lambda url: TRAINING, ["w"]),
    "slurm": (slurm, lambda url: {"jobs": [{"job_id": 7}], "errors": []}, [7]),
    "engine": (engine, lambda url: {"Name": "node-a"}, "node-a"),
    "kubernetes": (kubernetes, lambda url: LEASE, "one"),
    "identity provider": (
        identity_provider,
        lambda url: {"issuer": url, **dict.fromkeys(ENDPOINTS, f"{url}/x"), "keys": [{"kid": "a"}]},
        [{"kid": "a"}],
    ),
}
"""How each client reads, what the server sends, and what the client must find in it."""


@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize(
    ("size", "pause"), [(4096, 0.001), (172 * 1024, 0.0), (LARGE, 0.0)], ids=["4 KB", "172 KB", "512 KB"]
)
@pytest.mark.parametrize("client", CLIENTS)
async def test_a_client_reads_the_whole_body_of_an_answer_in_segments(
    client: str, size: int, pause: float, compressed: bool
) -> None:
    read, content, expected = CLIENTS[client]
    upstream = Upstream()
    async with upstream.serving(pause) as url:
        upstream.send(content(url), size, compressed=compressed)
        assert await read(url) == expected


async def bodies(url: str, reader: BodyReader) -> int:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/path?token=secret") as response:
        return len(await reader.read(response))


async def test_a_body_of_exactly_the_limit_is_read_and_one_byte_more_is_an_error() -> None:
    upstream = Upstream()
    async with upstream.serving(0.0) as url:
        upstream.body = b"x" * 100_000
        reader = BodyReader(100_000, MetricsUnavailable)
        assert await bodies(url, reader) == await bodies(url, reader) == 100_000
        upstream.body += b"x"
        with pytest.raises(MetricsUnavailable) as caught:
            await bodies(url, reader)
    assert str(caught.value) == (f"the response of {url}/path exceeds 100000 bytes")


async def test_a_small_body_that_decompresses_to_a_large_one_is_not_kept_in_memory() -> None:
    upstream = Upstream()
    upstream.body, upstream.encoding = gzip.compress(b" " * (256 * MB), 1), "gzip"
    async with upstream.serving(0.0) as url:
        tracemalloc.start()
        try:
            with pytest.raises(GpufleetError, match="exceeds 4194304 bytes"):
                await bodies(url, BodyReader(4 * MB, Unavailable))
            assert tracemalloc.get_traced_memory()[1] < 16 * MB
        finally:
            tracemalloc.stop()


async def test_bodies_that_are_read_at_the_same_time_have_one_limit_together() -> None:
    upstream = Upstream()
    upstream.body = b"x" * 300_000
    reader = BodyReader(400_000, Unavailable)
    async with upstream.serving(0.0) as url:
        outcomes = await asyncio.gather(*(bodies(url, reader) for _ in range(2)), return_exceptions=True)
        assert any(isinstance(outcome, Unavailable) for outcome in outcomes)
        assert await bodies(url, reader) == 300_000
