"""An engine behind TLS, with and without the right certificates."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from tests.sources.docker.engine_server import EngineServer
from tests.sources.docker.real_podman import running_podman
from tests.sources.docker.real_tls import Authority, behind_tls
from tests.waiting import wait_until

from gpufleet.errors import ContainersUnavailable
from gpufleet.fleet.state import Fleet
from gpufleet.runtime.settings import DockerSettings
from gpufleet.sources.docker import DockerSource
from gpufleet.sources.docker.engine import Engine


async def test_containers_of_podman_appear_and_disappear_over_tls(tmp_path: Path) -> None:
    with running_podman() as podman, behind_tls(podman.socket, tmp_path) as guarded:
        settings = DockerSettings(**guarded._asdict(), node="box", gpus=4)
        fleet = Fleet("here")
        source = DockerSource(settings, fleet)
        running = asyncio.create_task(source.run())
        try:
            await asyncio.wait_for(source.polling.synced(), 60)
            run = asyncio.to_thread
            train = await run(podman.run, "train", "--env", "NVIDIA_VISIBLE_DEVICES=1,2")
            await wait_until(lambda: (box := fleet.views().get("box")) and box.holders, 60)
            assert fleet.views()["box"].holders == {1: (train,), 2: (train,)}
            await run(podman.command, "rm", "--force", "--time", "0", "train")
            await wait_until(lambda: train in fleet.ended(), 60)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@pytest.mark.parametrize("url", ["https", "tcp"])
async def test_an_engine_is_reached_with_the_right_certificates(tmp_path: Path, url: str) -> None:
    async with EngineServer("dgx-7").serving(tmp_path / "engine.sock"):
        with behind_tls(tmp_path / "engine.sock", tmp_path) as guarded:
            settings = guarded._asdict() | {"url": guarded.url.replace("https", url)}
            engine = Engine(DockerSettings(**settings))
            try:
                assert (await engine.info()).name == "dgx-7"
            finally:
                await engine.close()


async def test_without_the_right_certificate_the_engine_is_unavailable(tmp_path: Path) -> None:
    async with EngineServer("dgx-7").serving(tmp_path / "engine.sock"):
        with behind_tls(tmp_path / "engine.sock", tmp_path) as guarded:
            other = Authority(tmp_path, "stranger")
            foreign = other.signed("strange")
            for settings, words in (
                (DockerSettings(guarded.url, ca_file=other.file), "its certificate is not trusted"),
                (DockerSettings(guarded.url, ca_file=guarded.ca_file), "can't be reached"),
                (
                    DockerSettings(
                        guarded.url, ca_file=guarded.ca_file, cert_file=foreign[0], key_file=foreign[1]
                    ),
                    "can't be reached",
                ),
                (DockerSettings(guarded.url, ca_file=tmp_path / "none"), "can't be read"),
            ):
                engine = Engine(settings)
                try:
                    with pytest.raises(ContainersUnavailable, match=words):
                        await engine.info()
                finally:
                    await engine.close()
