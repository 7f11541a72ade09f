"""Test the reporter over real sockets to the real routes."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.pod_environment import in_pod
from tests.server.live.conftest import TOKENS, known_fleet
from tests.training_server import training_server

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.node import FleetNode
from gpufleet.model.reading import TrainingPoint
from gpufleet.model.workload import FleetPod, Status
from gpufleet.report import Reporter, find_rank, find_workload
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.server import Server
from gpufleet.server.routes.live.training import training_routes
from gpufleet.store import Store

SOURCE = Path(__file__).parents[1] / "src"


class Place:
    """A server that tests can start and stop at one address."""

    def __init__(self, store: Store) -> None:
        fleet = known_fleet()
        metrics = EmbeddedMetrics("prod", store.readings, store.training, MetricsSettings())
        clusters = Clusters([Cluster("prod", fleet, Listing(fleet), metrics)])
        self._routes = training_routes(clusters, store.training, TOKENS)
        self._store = store
        self._listening = bind("127.0.0.1", 0)
        self.url = address_of(self._listening)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        lifecycle = Lifecycle()
        self._server = Server(create_app(Api(routes=self._routes, lifecycle=lifecycle)), lifecycle, 1)
        ready = asyncio.Event()
        self._server.on_started = ready.set
        self._task = asyncio.create_task(self._server.serve(sockets=[self._listening.dup()]))
        await ready.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._server.stop()
            await self._task
            self._task = None

    def close(self) -> None:
        self._listening.close()

    async def points(self) -> list[TrainingPoint]:
        return list(await self._store.training.read("job", 0, 1e11))


@pytest.fixture
async def place(store: Store) -> AsyncIterator[Place]:
    opened = Place(store)
    yield opened
    await opened.stop()
    opened.close()


def reporter(url: str, **more: object) -> Reporter:
    environ = {"POD_UID": "uid-bert-0", "RANK": "3"}
    return Reporter(url, every=0.01, timeout=1.0, environ=environ, **more)  # type: ignore[arg-type]


async def test_one_line_reports_the_numbers_of_this_pods_workload(place: Place) -> None:
    await place.start()
    with reporter(place.url, parameters=7e9, precision="bf16") as report:
        report.log(step=1, loss=2.5, tokens_per_second=1000)
        assert await asyncio.to_thread(report.flush)
    found = {(point.metric, point.value, point.rank) for point in await place.points()}
    assert found == {
        ("step", 1.0, 3),
        ("loss", 2.5, 3),
        ("tokens_per_second", 1000.0, 3),
        ("parameters", 7e9, 3),
        ("precision_bits", 16.0, 3),
    }
    assert (report.sent, report.dropped, report.faults) == (5, 0, 0)


async def test_steps_within_one_millisecond_are_all_kept(place: Place) -> None:
    await place.start()
    with reporter(place.url) as report:
        for step in range(50):
            report.log(step=step, loss=step)
        assert await asyncio.to_thread(report.flush)
    losses = [point for point in await place.points() if point.metric == "loss"]
    assert [point.value for point in sorted(losses, key=lambda point: point.time)] == list(range(50))


async def test_numbers_are_buffered_while_the_server_is_unavailable(place: Place) -> None:
    report = reporter("http://127.0.0.1:9")
    report.log(step=1, loss=2.5)
    assert not await asyncio.to_thread(report.flush, 0.3)
    assert report.faults > 0
    report._address = report._address.replace("http://127.0.0.1:9", place.url)
    await place.start()
    assert await asyncio.to_thread(report.flush)
    assert {point.metric for point in await place.points()} == {"step", "loss"}
    report.close()


async def test_a_full_buffer_drops_the_oldest_and_counts_them(place: Place) -> None:
    report = reporter("http://127.0.0.1:9", buffer=10, at_exit=0.0)
    report._thread = threading.current_thread()  # nothing is sent meanwhile
    for step in range(100):
        report.log(loss=step)
    assert report.dropped == 90
    report._address = report._address.replace("http://127.0.0.1:9", place.url)
    await place.start()
    assert await asyncio.to_thread(report.flush)
    assert max(point.value for point in await place.points()) == 99
    assert min(point.value for point in await place.points()) >= 90


async def test_a_value_that_is_not_a_number_is_dropped(place: Place) -> None:
    await place.start()
    with reporter(place.url) as report:
        report.log(loss=float("nan"), name="text", broken=Broken(), good=1, nothing=None)
        assert await asyncio.to_thread(report.flush)
    assert [point.metric for point in await place.points()] == ["good"]
    assert report.dropped == 4


class Broken:
    def detach(self) -> float:
        raise RuntimeError("no")


def test_log_returns_immediately_without_a_server() -> None:
    with reporter("http://127.0.0.1:9", at_exit=0.0) as report:
        began = time.perf_counter()
        for step in range(1000):
            report.log(step=step, loss=1.0)
        assert time.perf_counter() - began < 5  # a single try to connect that was waited for takes longer


def test_nothing_is_reported_without_an_address() -> None:
    report = Reporter(environ={})
    report.log(loss=1.0)
    assert report.flush(0.0)
    assert (report.sent, report._thread) == (0, None)


def test_a_script_sends_the_rest_at_exit_without_delay() -> None:
    script = (
        "from gpufleet.report import Reporter\nReporter('http://127.0.0.1:9', 'x', at_exit=0.5).log(loss=1)\n"
    )
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "Traceback" not in ended.stderr
    assert time.monotonic() - began < 15


def test_it_only_needs_the_standard_library() -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import gpufleet.report; "
        "print([name for name in sys.modules if not name.startswith('gpufleet') "
        "and name.partition('.')[0] not in sys.stdlib_module_names and name != '__main__'])"
    )
    # -I -S: no packages of this environment can be found
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True)
    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")


def test_a_child_process_does_not_send_the_numbers_of_its_parent() -> None:
    report = reporter("http://127.0.0.1:9", at_exit=0.0)
    report._queue.append(("loss", 1.0, 0))
    report._pid = os.getpid() + 1  # as it is after a fork
    report.log(step=1)
    assert [row[0] for row in report._queue] in (["step"], [])
    report.close()


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"GPUFLEET_WORKLOAD_UID": "w", "POD_UID": "p"}, "w"),
        ({"POD_UID": "p", "SLURM_JOB_ID": "7"}, "p"),
        ({"SLURM_JOB_ID": "7"}, "slurm:7"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "0a1b2c3d-1111-2222-3333-444455556666"),
        ({}, None),
    ],
)
def test_it_finds_its_workload(environ: dict[str, str], found: str | None, tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(
        "609 590 0:5 / /dev/shm rw - tmpfs tmpfs rw\n"
        "612 590 259:1 /var/lib/kubelet/pods/0a1b2c3d-1111-2222-3333-444455556666/etc-hosts /etc/hosts rw\n"
    )
    assert find_workload(environ, tmp_path) == found


def test_it_finds_the_pod_in_the_name_of_its_cgroup(tmp_path: Path) -> None:
    name = "kubepods-burstable-pod0a1b2c3d_1111_2222_3333_444455556666.slice/cri-1.scope"
    (tmp_path / "cgroup").write_text(f"0::/kubepods.slice/{name}\n")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert find_workload(environ, tmp_path) == "0a1b2c3d-1111-2222-3333-444455556666"


UID = "0a1b2c3d-1111-2222-3333-444455556666"
ONE_LINE = "import sys; from gpufleet.report import Reporter; report = Reporter(); report.log(loss=1.5); {}"


@pytest.mark.parametrize("downward", [{}, {"POD_UID": UID}], ids=["by its mounts", "by the downward API"])
async def test_inside_a_pod_it_finds_its_workload_and_token(store: Store, downward: dict[str, str]) -> None:
    fleet = Fleet("prod")
    fleet.put_node(FleetNode(name="a", gpu_count=8))
    fleet.put_pod(FleetPod(uid=UID, name="train", namespace="ml", node="a", gpus=1, phase=Status.RUNNING))
    script_end = "sys.exit(not report.flush(30))"
    async with training_server(fleet, store) as url:
        done = await asyncio.to_thread(
            in_pod,
            UID,
            "token-of-the-pod",
            {"GPUFLEET_URL": url, "RANK": "2", **downward},
            [sys.executable, "-c", ONE_LINE.format(script_end)],
        )
    assert (done.returncode, done.stderr) == (0, "")
    (point,) = await store.training.read(UID, 0, 1e11)
    assert (point.metric, point.value, point.rank) == ("loss", 1.5, 2)


def test_inside_a_pod_the_mounted_token_is_read() -> None:
    script = "import os; from gpufleet.report import find_token; print(find_token(os.environ))"
    done = in_pod(UID, "token-of-the-pod\n", {}, [sys.executable, "-c", script])
    assert (done.stdout, done.stderr) == ("token-of-the-pod\n", "")


def test_a_pod_within_a_pod_is_the_inner_one(tmp_path: Path) -> None:
    outer = UID.replace("0a1b2c3d", "ffffffff")
    lines = [f"612 590 259:1 /var/lib/kubelet/pods/{uid}/etc-hosts /etc/hosts rw" for uid in (outer, UID)]
    (tmp_path / "mountinfo").write_text("\n".join(lines))
    assert find_workload({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == UID


def test_it_finds_its_rank() -> None:
    assert find_rank({"RANK": "3", "SLURM_PROCID": "9"}) == 3
    assert find_rank({"OMPI_COMM_WORLD_RANK": "5"}) == 5
    assert find_rank({"RANK": "first"}) is None
    assert find_rank({}) is None


class Elsewhere(BaseHTTPRequestHandler):
    """Redirects every request, as a gateway from http to https does."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(308)
        self.send_header("Location", "https://fleet.example/")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_redirect_does_not_count_as_sent() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        report = reporter(f"http://127.0.0.1:{server.server_port}", at_exit=0.0)
        report.log(loss=1.0)
        assert not report.flush()
        server.shutdown()
        serving.join()
        assert (report.sent, len(report._rows)) == (0, 1)
        assert report.faults > 0
        report.close()


def test_a_slow_response_blocks_neither_flush_nor_exit() -> None:
    over = threading.Event()

    def drip(listening: socket.socket) -> None:
        listening.settimeout(0.1)
        open_ones: list[socket.socket] = []
        while not over.is_set():
            with suppress(TimeoutError):
                open_ones.append(listening.accept()[0])
                open_ones[-1].sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            for each in open_ones:
                with suppress(OSError):
                    each.sendall(b"x")  # a byte in time, for ever: no read of the socket times out
        for each in open_ones:
            each.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        dripping = threading.Thread(target=drip, args=(listening,))
        dripping.start()
        report = reporter(f"http://127.0.0.1:{listening.getsockname()[1]}", at_exit=0.5)
        report.log(loss=1.0)
        ends = [
            threading.Thread(target=end, daemon=True) for end in (lambda: report.flush(0.5), report.close)
        ]
        for each in ends:
            each.start()
            each.join(30)
        held_up = [each.is_alive() for each in ends]
        over.set()
        dripping.join()
        assert held_up == [False, False]


async def test_a_name_that_the_server_rejects_is_dropped_alone(place: Place) -> None:
    await place.start()
    with reporter(place.url) as report:
        report.log(**{"loss": 2.5, "Verlust µ": 1.0, "": 1.0, "x" * 129: 1.0})
        assert await asyncio.to_thread(report.flush)
    assert [point.metric for point in await place.points()] == ["loss"]
    assert (report.sent, report.dropped) == (1, 3)


async def test_more_names_than_the_server_keeps_leave_the_first_ones(place: Place) -> None:
    await place.start()
    facts: dict[str, object] = {"layers": 2, "hidden_size": 2, "sequence_length": 2, "precision": "bf16"}
    with reporter(place.url, parameters=7e9, **facts) as report:
        report.log(loss=2.5, **{f"layer_{number}": number for number in range(400)})
        assert await asyncio.to_thread(report.flush)
    names = {point.metric for point in await place.points()}
    assert len(names) == 200
    assert "loss" in names
    assert (report.sent, report.dropped, report.faults) == (200, 206, 0)


def test_a_clock_that_is_set_back_is_tolerated() -> None:
    report = reporter("http://127.0.0.1:9", at_exit=0.0)
    report._thread = threading.current_thread()  # nothing is sent meanwhile
    report.log(loss=1.0)
    report._last["loss"] += 3_600_000  # as if the clock had been an hour ahead
    report.log(loss=2.0)
    first, second = (at for _, _, at in report._queue)
    assert 0 <= second - first < 60_000


class OfAllRanks(float):
    """A minimal DTensor: reading it needs the other ranks."""

    read = False

    def full_tensor(self) -> float:
        return 1.0

    def detach(self) -> "OfAllRanks":
        return self

    def __float__(self) -> float:
        OfAllRanks.read = True
        return 1.0


async def test_a_tensor_of_all_ranks_is_not_read_in_the_background(place: Place) -> None:
    await place.start()
    with reporter(place.url, precision=16) as report:
        report.log(grad_norm=OfAllRanks(), huge=10**400, good=1)
        assert await asyncio.to_thread(report.flush)
    assert [point.metric for point in await place.points()] == ["good"]
    assert (OfAllRanks.read, report.dropped, report.faults) == (False, 2, 0)
