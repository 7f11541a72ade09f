"""What tests of several rooms share: a real PostgreSQL, and logs that end with their test.

    async def test_it(postgres_url: str) -> None: ...
    async def test_that(store: Store) -> None: ...

One server runs for the session (one for each xdist worker), without fsync since nothing
in it outlives the run; each test gets a database of its own, copied from a template.
"""

import asyncio
import functools
import itertools
import logging
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
import structlog

from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Store, open_store
from gpufleet.store.postgres.data_directory import DataDirectory, prepare
from gpufleet.store.postgres.migrate import upgrade

_OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Undo what a command set up: its log goes to a file that pytest closes after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def postgres() -> Iterator[DataDirectory]:
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


@pytest.fixture(scope="session")
def _made_data() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-made-"))
    prepare(folder / "postgres", folder / "run", folder / "log", durable=False)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def empty_data() -> Iterator[Path]:
    """A data directory for an embedded server.

    Not below `tmp_path`: each run of pytest by root closes that to the user whom PostgreSQL
    runs as, also for a run that is under way.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-data-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def data(empty_data: Path, _made_data: Path) -> Path:
    """The same with a database in it, to save the time that making one takes."""
    subprocess.run(["cp", "-a", str(_made_data / "postgres"), str(empty_data)], check=True)
    return empty_data


@pytest.fixture
def postgres_url(postgres: DataDirectory) -> Iterator[str]:
    """A database of this test alone, with the tables of this program."""
    yield from _database(postgres, _template(postgres))


@pytest.fixture
def empty_postgres_url(postgres: DataDirectory) -> Iterator[str]:
    """A database of this test alone in which nothing is made yet."""
    yield from _database(postgres, "template0")


@pytest.fixture
def store_settings(postgres_url: str) -> StoreSettings:
    """The settings of a store on the database of this test."""
    return StoreSettings(url=postgres_url, pool_size=4, retry_timeout=5.0, start_timeout=10.0)


@pytest.fixture
async def store(store_settings: StoreSettings) -> AsyncIterator[Store]:
    """A store on the database of this test."""
    async with open_store(store_settings) as opened:
        yield opened


@functools.cache
def _template(cluster: DataDirectory) -> str:
    asyncio.run(_execute(cluster, "CREATE DATABASE shaped TEMPLATE template0"))
    asyncio.run(upgrade(cluster.dsn_of("shaped"), StoreSettings()))
    return "shaped"


def _database(cluster: DataDirectory, template: str) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    asyncio.run(_execute(cluster, f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    yield cluster.dsn_of(name)
    asyncio.run(_execute(cluster, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _until_ready(cluster: DataDirectory) -> None:
    for _ in range(300):
        try:
            await _execute(cluster, "SELECT 1")
        except (OSError, asyncpg.PostgresError):
            await asyncio.sleep(0.1)
        else:
            return
    raise RuntimeError(f"PostgreSQL did not start:\n{cluster.log_tail()}")


async def _execute(cluster: DataDirectory, statement: str) -> None:
    connection = await asyncpg.connect(cluster.dsn_of("postgres"), timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
