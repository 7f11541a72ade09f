"""Running webhook, scheduler and agent: callers and a Kubernetes API that send without end cost little memory."""

import asyncio
import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import aiohttp
import psutil
import pytest
from tests.attacks.conftest import Target
from tests.attacks.test_upstreams import KUBECONFIG, hostile
from tests.webhook.conftest import Cluster, cluster

from gpufleet.kubernetes.certificates.keyring import new_keyring

pytestmark = pytest.mark.long
__all__ = ["cluster"]
MB = 1024 * 1024
HEAD_SECONDS, BODY_SECONDS = 20, 30
FLOOD_SECONDS = 8
CHUNKED, JSON, CLOSE = b"Transfer-Encoding: chunked", b"Content-Type: application/json", b"Connection: close"


@dataclass
class Program:
    """A command whose port is attacked."""

    words: tuple[str, ...]
    post: bytes
    """Path of a POST route, or of none."""
    max_body: int


PROGRAMS = {
    "webhook": Program(("webhook", "--namespace", "gpufleet"), b"/mutate", 8 * MB),
    "scheduler": Program(("scheduler",), b"/filter", 64 * MB),
    "scheduler's probes": Program(("scheduler", "--standalone"), b"/filter", MB),
    "agent": Program(("agent", "--set", "devices.reader=simulated"), b"/metrics", MB),
}


@contextmanager
def running(program: Program, kubeconfig: Path) -> Iterator[Target]:
    """Run a command on a free port."""
    flags = ("--port", "0", "--kubeconfig", str(kubeconfig), "--log-level", "error")
    certificate = _certificate(kubeconfig.parent) if program.words[0] == "webhook" else ()
    with subprocess.Popen(
        [sys.executable, "-m", "gpufleet", *program.words, *flags, *certificate],
        stdout=subprocess.PIPE,
        text=True,
        cwd=kubeconfig.parent,
        env={**os.environ, "DATABASE_URL": ""},
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().rpartition(" ")[2].strip()
            port = int(url.rpartition(":")[2])
            tls = ssl._create_unverified_context() if url.startswith("https") else None
            yield Target(program.words[0], port, psutil.Process(process.pid), program.post, b"/metrics", tls)
        finally:
            process.kill()


@pytest.fixture(params=PROGRAMS)
async def program(request: pytest.FixtureRequest) -> Program:
    return PROGRAMS[request.param]


@pytest.fixture
async def target(program: Program, cluster: Cluster, tmp_path: Path) -> AsyncIterator[Target]:
    """Run the program on an embedded Kubernetes API."""
    starting = running(program, tmp_path / "kubeconfig")
    yield await asyncio.to_thread(starting.__enter__)
    starting.__exit__(None, None, None)


async def test_slow_callers_are_disconnected(cluster: Cluster, tmp_path: Path) -> None:
    """All programs at once, because the limits are long."""
    with ExitStack() as programs:
        targets = [
            await asyncio.to_thread(programs.enter_context, running(each, tmp_path / "kubeconfig"))
            for each in PROGRAMS.values()
        ]
        await asyncio.gather(*map(_attack_slowly, targets))


async def _attack_slowly(target: Target) -> None:
    async def ends(seconds: float, *pieces: bytes) -> None:
        started = time.monotonic()
        await target.exchange(*pieces, pause=0.5, seconds=seconds + 30)
        assert time.monotonic() - started < seconds + 15

    slow_head = (b"GET /livez HTTP/1.1\r\nHost: a\r\n", *repeat(b"X: y\r\n", 80))
    slow_body = (target.head(b"Content-Length: 100000", JSON), *repeat(b"[", 80))
    async with target.watched(), asyncio.TaskGroup() as group:
        for _ in range(50):
            group.create_task(ends(HEAD_SECONDS))
            group.create_task(ends(HEAD_SECONDS, *slow_head))
            group.create_task(ends(BODY_SECONDS, *slow_body))


async def test_heads_and_trailers_without_end_are_refused(target: Target) -> None:
    endless = list(repeat(b"X1: y\r\n" * 9000, 60 * MB // 63000))
    async with target.watched(), asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(target.exchange(b"GET /livez HTTP/1.1\r\nHost: a\r\nX: ", *endless, seconds=60))
            group.create_task(target.exchange(target.head(CHUNKED, JSON), b"0\r\n", *endless, seconds=60))


async def test_large_and_deep_bodies_cost_little(target: Target, program: Program) -> None:
    head, size = b'{"request":{"uid":"a","operation":"CREATE","object":', min(program.max_body, 8 * MB) - 1000
    review = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",' + head[1:]
    bodies = [
        review + b'{"spec":{"containers":[' + b"{}," * ((size - 200) // 3) + b"{}]}}}}",
        review + b"[" * (size - 200),
        review + b'{"metadata":{"annotations":{"a":"' + b"x" * (size - 200) + b'"}}}}}',
        b"[" * size,
    ]
    async with target.watched(), asyncio.TaskGroup() as group:
        for body in bodies:
            for _ in range(3):
                whole = target.head(b"Content-Length: %d" % len(body), JSON, CLOSE), body
                group.create_task(target.exchange(*whole, seconds=60))


async def test_many_callers_with_large_bodies_cost_little(target: Target, program: Program) -> None:
    """A body is almost complete, and its end does not come."""
    body = list(repeat(b"x" * 65536, min(program.max_body - MB // 2, 8 * MB) // 65536))
    head = target.head(b"Content-Length: %d" % (len(body) * 65536 + 1000), JSON)
    async with target.watched():
        slow = [asyncio.create_task(target.exchange(head, *body, seconds=60)) for _ in range(60)]
        await asyncio.wait(slow, timeout=15)
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_kubernetes_api_without_end_costs_little(name: str, tmp_path: Path) -> None:
    with hostile("kubernetes") as url:
        (tmp_path / "kubeconfig").write_text(KUBECONFIG % url)
        with running(PROGRAMS[name], tmp_path / "kubeconfig") as target:
            async with target.watched():
                await asyncio.sleep(FLOOD_SECONDS)
            async with aiohttp.ClientSession() as session, session.get(f"{url}/attacked") as answer:
                assert int(await answer.text()) > 0


def _certificate(folder: Path) -> tuple[str, ...]:
    """Return the flags of a certificate in files: a flooded API can't store one."""
    ring = new_keyring(["localhost"], time.time(), 86400)
    (folder / "tls.crt").write_bytes(ring.certificate)
    (folder / "tls.key").write_bytes(ring.key)
    return "--certificate-file", str(folder / "tls.crt"), "--key-file", str(folder / "tls.key")
