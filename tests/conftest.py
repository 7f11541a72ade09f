"""What tests of several rooms share: a real PostgreSQL.

    async def test_it(postgres_url: str) -> None: ...

One server runs for the session (one for each xdist worker), without fsync since nothing
in it outlives the run; each test gets a database of its own, copied from a template.
"""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from gpufleet.store.cluster import Cluster, prepare

_OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """The server of this session."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-tests-"))
    cluster = prepare(folder / "postgres", folder / "run", folder / "log", durable=False)
    process = cluster.spawn(_OPTIONS)
    try:
        asyncio.run(_until_ready(cluster))
        yield cluster
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=30)
        shutil.rmtree(folder)


@pytest.fixture
def postgres_url(postgres: Cluster) -> Iterator[str]:
    """A database of this test alone."""
    yield from _database(postgres, "template0")


@pytest.fixture
def empty_postgres_url(postgres: Cluster) -> Iterator[str]:
    """A database of this test alone in which nothing is made yet."""
    yield from _database(postgres, "template0")


def _database(cluster: Cluster, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    asyncio.run(_execute(cluster, f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    yield cluster.dsn_of(name)
    asyncio.run(_execute(cluster, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _until_ready(cluster: Cluster) -> None:
    for _ in range(300):
        try:
            await _execute(cluster, "SELECT 1")
        except (OSError, asyncpg.PostgresError):
            await asyncio.sleep(0.1)
        else:
            return
    raise RuntimeError(f"PostgreSQL did not start:\n{cluster.last_words()}")


async def _execute(cluster: Cluster, statement: str) -> None:
    connection = await asyncpg.connect(cluster.dsn_of("postgres"), timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
