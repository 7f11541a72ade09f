"""Answers of Slurm and of a container engine that are larger than anybody needs."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.waiting import wait_until

from gpufleet.errors import GpufleetError
from gpufleet.fleet.state import Fleet
from gpufleet.runtime.settings import DockerSettings, SlurmSettings
from gpufleet.sources.docker import DockerSource
from gpufleet.sources.docker import source as source_module
from gpufleet.sources.docker.engine import Engine
from gpufleet.sources.slurm.commands import SlurmCommands
from gpufleet.sources.slurm.rest import SlurmRest

MB = 1024 * 1024


def upstream(body: bytes, repeat: int) -> TestServer:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(repeat):
            await response.write(body)
        return response

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    return TestServer(app, host="127.0.0.1")


async def check(ask: Callable[[], Awaitable[Any]], message: str, limit: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(GpufleetError, match=message):
            await ask()
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


async def test_a_response_of_slurmrestd_is_read_up_to_a_limit() -> None:
    async with upstream(b" " * MB, 100) as server:
        rest = SlurmRest(SlurmSettings(url=str(server.make_url("/"))), max_answer_bytes=4 * MB)
        await check(rest.jobs, "exceeds", 16 * MB)
        await rest.close()


@pytest.mark.parametrize("record", [b'{"job_id":1},', b"{},"])
async def test_slurm_has_a_limited_number_of_jobs(record: bytes) -> None:
    jobs = b'{"jobs":[' + record * 600_000 + record[:-1] + b"]}"
    async with upstream(jobs, 1) as server:
        rest = SlurmRest(SlurmSettings(url=str(server.make_url("/"))))
        await check(rest.jobs, "more than 500000 records|missing required field", 64 * MB)
        await rest.close()


@pytest.mark.parametrize("stream", ["1", "2"])
async def test_the_output_of_a_slurm_command_is_read_up_to_a_limit(tmp_path: Path, stream: str) -> None:
    for name in ("squeue", "scontrol", "sacct"):
        (tmp_path / name).write_text(f"#!/bin/sh\nexec yes >&{stream}\n")
        (tmp_path / name).chmod(0o755)
    commands = SlurmCommands(SlurmSettings(bin=tmp_path), max_answer_bytes=2 * MB)
    for ask in (commands.jobs, commands.nodes, lambda: commands.accounting_jobs(0.0)):
        await check(ask, "prints more than", 8 * MB)


async def test_a_response_of_a_container_engine_is_read_up_to_a_limit() -> None:
    async with upstream(b" " * MB, 100) as server:
        engine = Engine(DockerSettings(url=str(server.make_url("")).rstrip("/")))
        await check(engine.containers, "exceeds 67108864 bytes", 160 * MB)
        await engine.close()


async def test_a_container_engine_has_a_limited_number_of_containers() -> None:
    async with upstream(b"[" + b'{"Id":"1"},' * 200_000 + b'{"Id":"1"}]', 1) as server:
        engine = Engine(DockerSettings(url=str(server.make_url("")).rstrip("/")))
        await check(engine.containers, "more than 100000 containers", 32 * MB)
        await engine.close()


async def test_events_of_a_container_engine_without_end_do_not_accumulate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_module, "_MAX_CHANGED", 100)
    events = b"".join(b'{"Actor":{"ID":"%d"}}\n' % number for number in range(20_000))
    async with upstream(events, 1000) as server:
        source = DockerSource(DockerSettings(url=str(server.make_url("")).rstrip("/")), Fleet("here"))
        watching = asyncio.create_task(source._watch_events())
        await wait_until(lambda: len(source._changed_ids) == 100)
        steps = 0
        async with asyncio.timeout(10):
            while steps < 20:  # other tasks run meanwhile
                await asyncio.sleep(0.01)
                steps += 1
        assert len(source._changed_ids) == 100
        watching.cancel()
        await asyncio.wait([watching])
        await source.close()
