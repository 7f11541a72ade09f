"""A running server whose upstreams send too much: its memory stays small, and its probes answer."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from tests.attacks.conftest import Target
from tests.waiting import wait_until

pytestmark = pytest.mark.long
SECONDS = 3.0
"""How long an attack is watched after the server has noticed it."""
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: a
contexts: [{name: a, context: {cluster: a}}]
clusters: [{name: a, cluster: {server: "%s"}}]
"""


@contextmanager
def hostile(upstream: str) -> Iterator[str]:
    """Run a hostile upstream and yield its URL."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.attacks.hostile", upstream],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.kill()


@contextmanager
def serving(folder: Path, database: str, *flags: str) -> Iterator[Target]:
    """Run `gpufleet serve`."""
    command = [sys.executable, "-m", "gpufleet", "serve", "--port", "0", "--log-level", "error", *flags]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=folder, env={**os.environ, "DATABASE_URL": database}
    ) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().rpartition(":")[2])
            yield Target("serve", port, psutil.Process(process.pid), b"", b"")
        finally:
            process.kill()


async def problem(target: Target, words: str) -> None:
    """Wait until the health of a dependency says `words`."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{target.port}", timeout=30) as http:

        async def message() -> bool:
            health = (await http.get("/api/healthz")).json()["data"]["dependencies"]
            return any(words in each["message"] for each in health.values() if each["state"] != "ok")

        await wait_until(message, 60, 0.2)


async def attacked(target: Target, words: str) -> None:
    """Watch the server until its health says `words`, and for a while after that."""
    async with target.watched():
        await problem(target, words)
        await asyncio.sleep(SECONDS)


async def test_kubernetes_lists_and_watches_without_end(tmp_path: Path, postgres_url: str) -> None:
    with hostile("kubernetes") as url:
        (tmp_path / "kubeconfig").write_text(KUBECONFIG % url)
        with serving(tmp_path, postgres_url, "--kubeconfig", "kubeconfig") as target:
            await attacked(target, "kubernetes.max_cache_bytes")


@pytest.mark.parametrize(
    ("attack", "words"),
    [
        ("endless", "exceeds"),
        ("many_series", "metric"),
        ("many_series_in_one_piece", "metric"),
        ("many_points", "metric"),
        ("many_names", "in one piece"),
    ],
)
async def test_answers_of_a_metric_source_without_end(
    tmp_path: Path, postgres_url: str, attack: str, words: str
) -> None:
    with (
        hostile(f"prometheus-{attack}") as url,
        serving(tmp_path, postgres_url, "--prometheus-url", url) as target,
    ):
        await attacked(target, words)


@pytest.mark.parametrize(
    ("attack", "words"), [("slurm", "more than 500000 records"), ("slurm-endless", "exceeds")]
)
async def test_answers_of_slurm_without_end(
    tmp_path: Path, postgres_url: str, attack: str, words: str
) -> None:
    with hostile(attack) as url, serving(tmp_path, postgres_url, "--slurm-url", url) as target:
        await attacked(target, words)


@pytest.mark.parametrize(
    ("attack", "words"), [("docker", "more than 100000 containers"), ("docker-endless", "exceeds")]
)
async def test_answers_of_a_container_engine_without_end(
    tmp_path: Path, postgres_url: str, attack: str, words: str
) -> None:
    with hostile(attack) as url, serving(tmp_path, postgres_url, "--docker", url) as target:
        await attacked(target, words)


async def test_events_of_a_container_engine_without_end(tmp_path: Path, postgres_url: str) -> None:
    with hostile("docker-events") as url, serving(tmp_path, postgres_url, "--docker", url) as target:
        async with target.watched():
            await asyncio.sleep(SECONDS)
