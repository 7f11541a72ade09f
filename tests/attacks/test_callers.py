"""Callers of a running server: reads of a million training numbers, odd queries and floods of streams."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest
from tests.attacks.conftest import Target, max_probe_seconds
from tests.attacks.test_upstreams import serving
from tests.sources.slurm.test_translation import OF_25_05
from tests.waiting import wait_until

from gpufleet.server.routes.live.events import MAX_CLIENTS

pytestmark = pytest.mark.long
_SERIES = """
INSERT INTO training_series (cluster, workload_uid, oldest, metric, rank, points)
SELECT 'default', $1, 0, 'metric' || m, 0, 100000 FROM generate_series(1, 10) m
"""
_POINTS = (
    "INSERT INTO training_point SELECT id, $1 + at, at FROM training_series, generate_series(1, 100000) at"
)


@pytest.fixture
def target(tmp_path: Path, postgres_url: str) -> Iterator[Target]:
    """A server with one Slurm job."""
    nodes = [{"name": f"gpu0{number}", "gres": "gpu:a100:8", "state": ["MIXED"]} for number in (1, 2)]
    answers = {"squeue": {"jobs": [OF_25_05]}, "scontrol": {"nodes": nodes}, "sacct": {"jobs": []}}
    for name, answer in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
        (tmp_path / name).chmod(0o755)
    with serving(tmp_path, postgres_url, "--slurm", "--set", f"slurm.bin={tmp_path}") as running:
        yield running


def client(target: Target) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{target.port}", timeout=60, limits=limits)


async def test_large_training_reads_and_writes_do_not_delay_other_requests(
    target: Target, postgres_url: str
) -> None:
    now = time.time()
    async with client(target) as http:

        async def workloads() -> list[dict[str, str]]:
            found: list[dict[str, str]] = (await http.get("/api/workloads")).json()["data"]["data"]
            return found

        uid = (await wait_until(workloads, interval=0.2))[0]["uid"]
        database = await asyncpg.connect(postgres_url)
        await database.execute("SET session_replication_role = replica")  # no foreign keys, which take longer
        await database.execute(_SERIES, uid)
        await database.execute(_POINTS, now - 100_000)
        await database.close()
        span = {"start": str(int(now - 100_000) * 1000), "end": str(int(now) * 1000)}
        path = f"/api/workloads/{uid}/trainingPerformance"
        # Encoded once: the client, which shares its thread with the probes, must not be what is measured.
        rows = json.dumps(
            [
                {"metric": "loss", "value": 1.0, "timestamp": int(now * 1000) - number}
                for number in range(10_000)
            ]
        ).encode()
        headers = {"Content-Type": "application/json"}
        async with target.watched():
            reads = [asyncio.create_task(http.get(path, params=span)) for _ in range(12)]
            writes = [asyncio.create_task(http.post(path, content=rows, headers=headers)) for _ in range(20)]
            hours = {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-02T00:00:00Z"}
            while not all(task.done() for task in reads):
                started = time.monotonic()
                answer = await http.get("/api/v1/gpu-aggregation/cluster/hourly-stats", params=hours)
                assert answer.status_code == 200, answer.text
                assert time.monotonic() - started < max_probe_seconds()
                await asyncio.sleep(0.05)
            assert {task.result().status_code for task in reads} == {200}
            assert all(len(task.result().content) < 8_000_000 for task in reads)
            statuses = {answer.status_code for answer in await asyncio.gather(*writes)}
            assert statuses == {200, 429}


async def test_deep_and_large_queries_are_refused_quickly(target: Target) -> None:
    queries = [
        "a=" + "x" * 7900,
        "&".join(f"a{number}=1" for number in range(1900)),
        "a" + "[b]" * 2600 + "=1",
        "%61=" + "%25" * 2600,
        "kind=" + "&kind=" * 1300,
        "start_time=" + "9" * 7900,
    ]
    async with client(target) as http:
        paths = list((await http.get("/openapi.json")).json()["paths"])
        async with target.watched():
            for query in queries:
                answers = await asyncio.gather(
                    *(
                        http.get(f"{path}?{query}")
                        for path in paths
                        if "{" not in path and "events" not in path
                    )
                )
                assert all(answer.status_code < 500 for answer in answers)


async def test_a_flood_of_event_streams_leaves_the_server_answering(target: Target) -> None:
    async def opened() -> tuple[int, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
        writer.write(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return int((await reader.readuntil(b"\r\n")).split()[1]), writer

    async with target.watched(), client(target) as http:
        streams = await asyncio.gather(*(opened() for _ in range(400)))
        statuses = [status for status, _ in streams]
        overview = await http.get("/api/clusters/overview")
        for _, writer in streams:
            writer.transport.abort()
        assert overview.status_code == 200
        assert 0 < statuses.count(200) <= MAX_CLIENTS
        assert set(statuses) <= {200, 429, 503}

        async def is_free() -> bool:
            status, writer = await opened()
            writer.transport.abort()
            return status == 200

        await wait_until(is_free, interval=0.2)
