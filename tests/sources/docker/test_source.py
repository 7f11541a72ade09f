"""The source on an engine that speaks recorded answers: containers come, run, end, and faults pass."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.sources.docker.engine_server import EngineServer

from gpufleet.errors import SettingsError
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workload_summary import Workload
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.workload import Status
from gpufleet.runtime.settings import DockerSettings
from gpufleet.sources.docker import DockerSource

ALL = [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}]


def some(*ids: str) -> list[dict[str, object]]:
    return [{"Driver": "nvidia", "Count": 0, "DeviceIDs": list(ids), "Capabilities": [["gpu", "utility"]]}]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[tuple[EngineServer, str]]:
    server = EngineServer()
    async with server.serving(tmp_path / "engine.sock") as url:
        yield server, url


@pytest.fixture
async def followed(
    engine: tuple[EngineServer, str],
) -> AsyncIterator[tuple[EngineServer, DockerSource, Fleet]]:
    fleet = Fleet("here")
    fleet.start_accounting()
    source = DockerSource(DockerSettings(url=engine[1], gpus=8, timeout=0.5), fleet)
    yield engine[0], source, fleet
    await source.close()


def named(fleet: Fleet, name: str) -> Workload:
    (found,) = [w for w in fleet.workloads().values() if w.name == name]
    return found


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if true():
                return
            await asyncio.sleep(0.02)


async def test_a_container_with_gpus_is_a_workload_that_nobody_owns(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    id = server.run(
        "train-1", DeviceRequests=some("2", "3"), labels={"com.docker.compose.project": "llm", "team": "nlp"}
    )
    server.run("web")
    assert await source.polling.look(source.look), source.polling.problem
    train = named(fleet, "train-1")
    assert (train.uid, train.kind, train.namespace, train.status) == (id, "Container", "llm", Status.RUNNING)
    assert (train.gpus, train.labels["team"], train.started) == (2, "nlp", 1777629600.123456)
    view = fleet.views()["dgx-7"]
    assert (view.node.source, view.total, view.allocated) == ("docker", 8, 2)
    assert view.holders == {2: (id,), 3: (id,)}
    assert source.told() == "1 GPU containers on dgx-7"


async def test_a_container_ends_and_is_removed(followed: tuple[EngineServer, DockerSource, Fleet]) -> None:
    server, source, fleet = followed
    id = server.run("good", DeviceRequests=ALL)
    server.run("bad", status="created", DeviceRequests=some("0"))
    await source.look()
    assert (named(fleet, "good").gpus, named(fleet, "bad").status) == (8, Status.PENDING)
    server.run("good", status="exited", DeviceRequests=ALL)
    server.run("bad", status="exited", exit_code=137, DeviceRequests=some("0"))
    await source.look()
    assert (named(fleet, "good").status, named(fleet, "bad").status) == (Status.COMPLETED, Status.FAILED)
    assert fleet.views()["dgx-7"].allocated == 0
    server.remove(id)
    await source.look()
    assert fleet.ended()[id].workload.status is Status.COMPLETED
    assert fleet.ended()[id].workload.ended == 1777633200.0
    held = [
        (p.workload_name, p.gpus, round(p.end - p.start))
        for p in fleet.allocation_periods.drain()
        if p.pod_uid == id
    ]
    assert held == [("good", 8, 3600)]


async def test_containers_on_one_gpu_share_it_so_that_counts_add_up(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    server.run("a", DeviceRequests=some("0", "1"))
    server.run("b", DeviceRequests=some("1"))
    await source.look()
    assert fleet.views()["dgx-7"].allocated == 2
    pods = [pod for workload in fleet.workloads().values() for pod in workload.pods]
    assert sum(pod.gpus * pod.share for pod in pods) == pytest.approx(2)


async def test_uuids_are_joined_with_the_devices_that_something_else_knows(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    fleet.put_node(FleetNode(name="dgx-7", source="local", gpu_count=4))
    gpus = tuple(FleetGpu(index=index, uuid=f"GPU-{index}aaa") for index in range(4))
    fleet.put_devices(NodeDevices(node="dgx-7", gpus=gpus, total=4))
    server.run("named", DeviceRequests=some("GPU-3aaa"))
    server.run("strange", DeviceRequests=some("GPU-other"))
    await source.look()
    assert named(fleet, "named").pods[0].held == (3,)
    assert (named(fleet, "strange").gpus, named(fleet, "strange").pods[0].held) == (1, ())
    assert (fleet.views()["dgx-7"].node.source, fleet.views()["dgx-7"].total) == ("local", 4)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("500", "answers 500"), ("garbage", "not what was expected"), ("hang", "did not answer within 0.5 s")],
)
async def test_an_engine_that_fails_makes_the_picture_older_not_wrong(
    followed: tuple[EngineServer, DockerSource, Fleet], fault: str, words: str
) -> None:
    server, source, fleet = followed
    server.run("steady", DeviceRequests=ALL)
    assert await source.polling.look(source.look)
    server.fault = fault
    assert not await source.polling.look(source.look)
    assert words in source.polling.problem
    assert named(fleet, "steady").gpus == 8
    server.fault = ""
    assert await source.polling.look(source.look)


@asynccontextmanager
async def at_work(source: DockerSource) -> AsyncIterator[None]:
    """A source that runs meanwhile."""
    running = asyncio.create_task(source.run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("fault", ["hang", "500"])
async def test_one_container_that_can_not_be_inspected_costs_only_itself(
    engine: tuple[EngineServer, str], fault: str
) -> None:
    server, now = engine[0], [1_777_630_000.0]
    fleet = Fleet("here", clock=lambda: now[0])
    within = 1.0 if fault == "hang" else 30.0
    source = DockerSource(DockerSettings(url=engine[1], gpus=8, timeout=within), fleet, clock=lambda: now[0])
    known, stuck = (
        server.run("known", DeviceRequests=some("0")),
        server.run("stuck", DeviceRequests=some("1")),
    )
    server.stuck[stuck] = fault
    with capture_logs() as lines:
        assert await source.polling.look(source.look), source.polling.problem
        assert [w.name for w in fleet.workloads().values()] == ["known"]
        server.stuck[known] = fault
        server.containers[known]["State"]["Status"] = "paused"
        server.run("other", DeviceRequests=some("2"))
        assert await source.polling.look(source.look), source.polling.problem
        assert {w.name for w in fleet.workloads().values()} == {"known", "other"}, "it is as it was known"
        inspected = server.inspected
        assert await source.polling.look(source.look)
        assert server.inspected == inspected, "who does not answer is not asked at every turn"
    assert [(line["event"], line["container"]) for line in lines] == [
        ("container left as it was known", id[:12]) for id in (stuck, known)
    ]
    server.stuck.clear()
    server.containers[known]["State"].update(Status="running", StartedAt="2026-05-01T10:07:00Z")
    now[0] += 61
    assert await source.polling.look(source.look)
    assert named(fleet, "known").started == 1777630020.0, "asked again though its state is as it was known"
    assert {w.name for w in fleet.workloads().values()} == {"known", "stuck", "other"}
    await source.close()


async def test_an_engine_that_can_tell_of_no_container_makes_the_picture_older(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    for name in ("a", "b"):
        server.stuck[server.run(name, DeviceRequests=some("0"))] = "500"
    assert not await source.polling.look(source.look)
    assert "the engine answers 500" in source.polling.error
    server.stuck.clear()
    assert await source.polling.look(source.look)
    assert len(fleet.workloads()) == 2


async def test_changes_are_heard_of_at_once_and_only_what_changed_is_looked_at(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    server.run("first", DeviceRequests=some("0"))
    async with at_work(source):
        await source.polling.synced()
        await until(lambda: len(server._listeners) == 1)
        before = server.inspected
        server.run("second", DeviceRequests=some("1"))
        await until(lambda: len(fleet.workloads()) == 2)
        assert server.inspected == before + 1


async def test_an_engine_that_is_not_there_is_said(tmp_path: Path) -> None:
    source = DockerSource(DockerSettings(url=f"unix://{tmp_path}/none.sock"), Fleet("here"))
    assert not await source.polling.look(source.look)
    assert "none.sock can't be reached" in source.polling.problem
    await source.close()


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(SettingsError, match="it takes unix:///path"):
        DockerSource(DockerSettings(url="/var/run/docker.sock"), Fleet("here"))


async def test_a_container_that_was_restarted_has_run_since_then(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    id = server.run("train", DeviceRequests=some("0"))
    async with at_work(source):
        await until(lambda: bool(fleet.workloads()) and bool(server._listeners))
        server.containers[id]["State"]["StartedAt"] = "2026-05-01T12:00:00Z"  # and it runs, as before
        server.tell(id, "restart")
        await until(lambda: named(fleet, "train").started == 1777636800)


async def test_health_checks_of_containers_make_no_work(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    id = server.run("train", DeviceRequests=some("0"))
    async with at_work(source):
        await until(lambda: bool(fleet.workloads()) and bool(server._listeners))
        before = server.listed
        for _ in range(20):
            for action in (
                "exec_create: /bin/check",
                "exec_start: /bin/check",
                "exec_die",
                "health_status: healthy",
            ):
                server.tell(id, action)
            await asyncio.sleep(0.05)
        assert server.listed <= before + 1  # a look that was due anyway


@pytest.mark.parametrize("steps", range(5))
async def test_it_ends_when_told_though_a_container_changes_at_that_moment(
    followed: tuple[EngineServer, DockerSource, Fleet], steps: int
) -> None:
    _, source, _ = followed
    running = asyncio.create_task(source.run())
    await source.polling.synced()
    for _ in range(20):
        await asyncio.sleep(0)  # it waits for changes now
    source._changed.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    ended, _ = await asyncio.wait({running}, timeout=10)
    running.cancel()
    assert ended
