"""The source with a fake engine: containers appear, run and end, and the engine fails and recovers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.sources.docker.engine_server import EngineServer
from tests.waiting import wait_until

from gpufleet.errors import SettingsError
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.summary import Workload
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
    source = DockerSource(DockerSettings(url=engine[1], gpus=8), fleet, timeout=0.5)
    yield engine[0], source, fleet
    await source.close()


def named(fleet: Fleet, name: str) -> Workload:
    (found,) = [w for w in fleet.workloads().values() if w.name == name]
    return found


async def test_a_container_with_gpus_is_a_workload_without_owner(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    id = server.run(
        "train-1", DeviceRequests=some("2", "3"), labels={"com.docker.compose.project": "llm", "team": "nlp"}
    )
    server.run("web")
    assert await source.polling.run_once(source.refresh), source.polling.problem
    train = named(fleet, "train-1")
    assert (train.uid, train.kind, train.namespace, train.status) == (id, "Container", "llm", Status.RUNNING)
    assert (train.gpus, train.labels["team"], train.started) == (2, "nlp", 1777629600.123456)
    view = fleet.views()["dgx-7"]
    assert (view.node.source, view.total, view.allocated) == ("docker", 8, 2)
    assert view.holders == {2: (id,), 3: (id,)}
    assert source.summary() == "1 GPU containers on dgx-7"


async def test_a_container_ends_and_is_removed(followed: tuple[EngineServer, DockerSource, Fleet]) -> None:
    server, source, fleet = followed
    id = server.run("good", DeviceRequests=ALL)
    server.run("bad", status="created", DeviceRequests=some("0"))
    await source.refresh()
    assert (named(fleet, "good").gpus, named(fleet, "bad").status) == (8, Status.PENDING)
    server.run("good", status="exited", DeviceRequests=ALL)
    server.run("bad", status="exited", exit_code=137, DeviceRequests=some("0"))
    await source.refresh()
    assert (named(fleet, "good").status, named(fleet, "bad").status) == (Status.COMPLETED, Status.FAILED)
    assert fleet.views()["dgx-7"].allocated == 0
    server.remove(id)
    await source.refresh()
    assert fleet.ended()[id].workload.status is Status.COMPLETED
    assert fleet.ended()[id].workload.ended == 1777633200.0
    held = [
        (p.workload_name, p.gpus, round(p.end - p.start))
        for p in fleet.allocation_periods.drain()
        if p.pod_uid == id
    ]
    assert held == [("good", 8, 3600)]


async def test_containers_on_one_gpu_share_it(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    server.run("a", DeviceRequests=some("0", "1"))
    server.run("b", DeviceRequests=some("1"))
    await source.refresh()
    assert fleet.views()["dgx-7"].allocated == 2
    pods = [pod for workload in fleet.workloads().values() for pod in workload.pods]
    assert sum(pod.gpus * pod.share for pod in pods) == pytest.approx(2)


async def test_uuids_are_resolved_with_the_devices_of_another_source(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    fleet.put_node(FleetNode(name="dgx-7", source="local", gpu_count=4))
    gpus = tuple(FleetGpu(index=index, uuid=f"GPU-{index}aaa") for index in range(4))
    fleet.put_devices(NodeDevices(node="dgx-7", gpus=gpus, total=4))
    server.run("named", DeviceRequests=some("GPU-3aaa"))
    server.run("strange", DeviceRequests=some("GPU-other"))
    await source.refresh()
    assert named(fleet, "named").pods[0].held == (3,)
    assert (named(fleet, "strange").gpus, named(fleet, "strange").pods[0].held) == (1, ())
    assert (fleet.views()["dgx-7"].node.source, fleet.views()["dgx-7"].total) == ("local", 4)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("500", "responds 500"), ("garbage", "cannot be decoded"), ("hang", "did not answer within 0.5 s")],
)
async def test_an_engine_that_fails_leaves_the_fleet_unchanged(
    followed: tuple[EngineServer, DockerSource, Fleet], fault: str, words: str
) -> None:
    server, source, fleet = followed
    server.run("steady", DeviceRequests=ALL)
    assert await source.polling.run_once(source.refresh)
    server.fault = fault
    assert not await source.polling.run_once(source.refresh)
    assert words in source.polling.problem
    assert named(fleet, "steady").gpus == 8
    server.fault = ""
    assert await source.polling.run_once(source.refresh)


@asynccontextmanager
async def at_work(source: DockerSource) -> AsyncIterator[None]:
    """Run the source."""
    running = asyncio.create_task(source.run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("fault", ["hang", "500"])
async def test_a_container_that_cannot_be_inspected_affects_nothing_else(
    engine: tuple[EngineServer, str], fault: str
) -> None:
    server, now = engine[0], [1_777_630_000.0]
    fleet = Fleet("here", clock=lambda: now[0])
    within = 1.0 if fault == "hang" else 30.0
    source = DockerSource(DockerSettings(url=engine[1], gpus=8), fleet, clock=lambda: now[0], timeout=within)
    known, stuck = (
        server.run("known", DeviceRequests=some("0")),
        server.run("stuck", DeviceRequests=some("1")),
    )
    server.stuck[stuck] = fault
    with capture_logs() as lines:
        assert await source.polling.run_once(source.refresh), source.polling.problem
        assert [w.name for w in fleet.workloads().values()] == ["known"]
        server.stuck[known] = fault
        server.containers[known]["State"]["Status"] = "paused"
        server.run("other", DeviceRequests=some("2"))
        assert await source.polling.run_once(source.refresh), source.polling.problem
        assert {w.name for w in fleet.workloads().values()} == {"known", "other"}, "it is as it was known"
        inspected = server.inspected
        assert await source.polling.run_once(source.refresh)
        assert server.inspected == inspected, "a failing container is not inspected on every refresh"
    assert [(line["event"], line["container"]) for line in lines] == [
        ("container_not_inspected", id[:12]) for id in (stuck, known)
    ]
    server.stuck.clear()
    server.containers[known]["State"].update(Status="running", StartedAt="2026-05-01T10:07:00Z")
    now[0] += 61
    assert await source.polling.run_once(source.refresh)
    assert named(fleet, "known").started == 1777630020.0, (
        "inspected again although its listed state is unchanged"
    )
    assert {w.name for w in fleet.workloads().values()} == {"known", "stuck", "other"}
    await source.close()


async def test_an_engine_that_cannot_inspect_any_container_counts_as_failed(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    for name in ("a", "b"):
        server.stuck[server.run(name, DeviceRequests=some("0"))] = "500"
    assert not await source.polling.run_once(source.refresh)
    assert "the engine responds 500" in source.polling.error
    server.stuck.clear()
    assert await source.polling.run_once(source.refresh)
    assert len(fleet.workloads()) == 2


async def test_changes_are_seen_immediately_and_only_changed_containers_are_inspected(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    server.run("first", DeviceRequests=some("0"))
    async with at_work(source):
        await source.polling.synced()
        await wait_until(lambda: len(server._listeners) == 1)
        before = server.inspected
        server.run("second", DeviceRequests=some("1"))
        await wait_until(lambda: len(fleet.workloads()) == 2)
        assert server.inspected == before + 1


async def test_an_unreachable_engine_is_reported(tmp_path: Path) -> None:
    source = DockerSource(DockerSettings(url=f"unix://{tmp_path}/none.sock"), Fleet("here"))
    assert not await source.polling.run_once(source.refresh)
    assert "none.sock can't be reached" in source.polling.problem
    await source.close()


def test_an_invalid_url_is_refused() -> None:
    with pytest.raises(SettingsError, match="use unix:///path"):
        DockerSource(DockerSettings(url="/var/run/docker.sock"), Fleet("here"))


async def test_a_restarted_container_has_its_new_start_time(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    id = server.run("train", DeviceRequests=some("0"))
    async with at_work(source):
        await wait_until(lambda: bool(fleet.workloads()) and bool(server._listeners))
        server.containers[id]["State"]["StartedAt"] = "2026-05-01T12:00:00Z"  # and it runs, as before
        server.emit(id, "restart")
        await wait_until(lambda: named(fleet, "train").started == 1777636800)


async def test_events_of_health_checks_are_not_subscribed(
    followed: tuple[EngineServer, DockerSource, Fleet],
) -> None:
    server, source, fleet = followed
    id = server.run("train", DeviceRequests=some("0"))
    async with at_work(source):
        await wait_until(lambda: bool(fleet.workloads()) and bool(server._listeners))
        checks = ("exec_create: /bin/check", "exec_start: /bin/check", "exec_die", "health_status: healthy")
        assert [server.emit(id, action) for action in checks] == [0, 0, 0, 0]
        assert server.emit(id, "restart") == 1


@pytest.mark.parametrize("steps", range(5))
async def test_a_cancellation_that_coincides_with_a_change_is_not_lost(
    followed: tuple[EngineServer, DockerSource, Fleet], steps: int
) -> None:
    _, source, _ = followed
    running = asyncio.create_task(source.run())
    await source.polling.synced()
    for _ in range(20):
        await asyncio.sleep(0)  # it is waiting for changes now
    source._changed.set()
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    ended, _ = await asyncio.wait({running}, timeout=10)
    running.cancel()
    assert ended
