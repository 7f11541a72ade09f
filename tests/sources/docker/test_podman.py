"""The source on a real Podman."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.sources.docker.real_podman import Podman, running_podman
from tests.waiting import wait_until

from gpufleet.fleet.state import Fleet
from gpufleet.model.workload import Status
from gpufleet.runtime.settings import DockerSettings
from gpufleet.sources.docker import DockerSource


@pytest.fixture
def podman() -> Iterator[Podman]:
    with running_podman() as running:
        yield running


async def test_containers_appear_run_and_disappear(podman: Podman) -> None:
    fleet = Fleet("here")
    source = DockerSource(DockerSettings(url=f"unix://{podman.socket}", node="box", gpus=4), fleet)
    running = asyncio.create_task(source.run())
    try:
        await source.polling.synced()
        run = asyncio.to_thread
        train = await run(podman.run, "train", "--env", "NVIDIA_VISIBLE_DEVICES=1,2", "--label", "team=nlp")
        await run(podman.run, "web")
        bad = await run(podman.run, "bad", "--label", "gpufleet.gpus=3", program="false")
        await wait_until(lambda: set(fleet.workloads()) == {train, bad})
        found = fleet.workloads()[train]
        assert (found.name, found.kind, found.status, found.gpus) == ("train", "Container", Status.RUNNING, 2)
        assert found.labels["team"] == "nlp"
        assert found.started > 0
        await wait_until(lambda: fleet.workloads()[bad].status is Status.FAILED)
        assert fleet.views()["box"].holders == {1: (train,), 2: (train,)}
        await run(podman.command, "rm", "--force", "--time", "0", "train")
        await wait_until(lambda: train in fleet.ended())
        assert fleet.views()["box"].allocated == 0
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
