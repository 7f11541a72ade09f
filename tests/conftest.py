"""Shared fixtures: a real PostgreSQL, and logging that is reset after each test.

    async def test_it(postgres_url: str) -> None: ...
    async def test_that(store: Store) -> None: ...

One server runs per session (one per xdist worker), without fsync because its data need not survive
the run. Each test gets its own database, copied from a template.
"""

import asyncio
import functools
import itertools
import logging
import os
import shutil
import stat
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import hypothesis
import pytest
import structlog

from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Store, open_store
from gpufleet.store.postgres.data_directory import DataDirectory, prepare
from gpufleet.store.postgres.migrate import upgrade

# A pause of the machine must not fail an example; everything else is as in the profile that Hypothesis chose.
hypothesis.settings.register_profile("no-deadline", deadline=None)
hypothesis.settings.load_profile("no-deadline")
_OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "synchronous_commit": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}
_numbers = itertools.count(1)
_LONGEST = Path(__file__).with_name("longest_files.txt")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let workers begin with the longest files, so that they end at the same time; then those with most tests."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    files = [f"tests/{line}" for line in _LONGEST.read_text().splitlines() if not line.startswith("#")]
    rank = {file: at for at, file in enumerate(files)}
    tests = Counter(_file_of(item) for item in items)
    items.sort(key=lambda item: (rank.get(file := _file_of(item), len(rank)), -tests[file]))


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


@pytest.fixture(autouse=True)
def _reset_logging() -> Iterator[None]:
    """Undo the logging setup of a command: it writes to a file that pytest closes after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture(scope="session")
def postgres() -> Iterator[DataDirectory]:
    """Run the server of this session."""
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
def _prepared_data() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-prepared-"))
    prepare(folder / "postgres", folder / "run", folder / "log", durable=False)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """Let PostgreSQL's user search pytest's directories, which pytest closes for all others if root runs it."""
    if os.geteuid() == 0:
        for folder in (tmp_path, *tmp_path.parents):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    return tmp_path


@pytest.fixture
def empty_data() -> Iterator[Path]:
    """Return an empty data directory for an embedded server.

    Not below `tmp_path`: a run of pytest as root makes that unreadable for PostgreSQL's user,
    even for other runs in progress.
    """
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-data-"))
    folder.chmod(0o711)  # tests also use directories in it
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def data(empty_data: Path, _prepared_data: Path) -> Path:
    """Return a data directory with a prepared database, which is faster than creating one."""
    subprocess.run(["cp", "-a", str(_prepared_data / "postgres"), str(empty_data)], check=True)
    return empty_data


@pytest.fixture
def postgres_url(postgres: DataDirectory) -> Iterator[str]:
    """Create a database for this test with the current schema."""
    yield from _database(postgres, _template(postgres))


@pytest.fixture
def empty_postgres_url(postgres: DataDirectory) -> Iterator[str]:
    """Create an empty database for this test."""
    yield from _database(postgres, "template0")


@pytest.fixture
def store_settings(postgres_url: str) -> StoreSettings:
    """Return settings of a store on the database of this test."""
    return StoreSettings(url=postgres_url, pool_size=4, start_timeout=10.0)


@pytest.fixture
async def store(store_settings: StoreSettings) -> AsyncIterator[Store]:
    """Open a store on the database of this test."""
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
