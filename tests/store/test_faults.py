"""Fault injection: acknowledged data survives, and the store recovers by itself."""

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import psutil
import pytest
from tests.store.processes import servers_of
from tests.waiting import wait_until

from gpufleet.errors import StoreUnavailable
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Store, open_store

PARTS = 3
TABLE = "CREATE TABLE IF NOT EXISTS written (number bigint, part int, text text, PRIMARY KEY (number, part))"


async def write(store: Store, number: int, text: str = "") -> None:
    """Write several rows in one transaction."""

    async def work(connection: asyncpg.Connection) -> None:
        for part in range(PARTS):
            await connection.execute(
                "INSERT INTO written VALUES ($1, $2, $3) ON CONFLICT DO NOTHING", number, part, text
            )

    await store.database.transaction(work)


async def complete_and_partial(store: Store) -> tuple[set[int], set[int]]:
    """Return the complete and the incomplete transactions."""
    rows = await store.database.fetch("SELECT number, count(*) AS parts FROM written GROUP BY number")
    complete = {row["number"] for row in rows if row["parts"] == PARTS}
    return complete, {row["number"] for row in rows} - complete


def postmaster(data: Path) -> int:
    return int((data / "postgres" / "postmaster.pid").read_text().splitlines()[0])


async def test_a_database_killed_under_load_keeps_all_acknowledged_data(data: Path) -> None:
    settings = StoreSettings(data=data, pool_size=4)
    acknowledged: set[int] = set()
    stop = asyncio.Event()

    async def load(store: Store, worker: int) -> None:
        number = worker
        while not stop.is_set():
            await write(store, number)
            acknowledged.add(number)
            number += 4

    async def twenty_more() -> None:
        before = len(acknowledged)
        await wait_until(lambda: len(acknowledged) >= before + 20, 60)

    async with open_store(settings, retry_timeout=60.0) as store:
        await store.database.execute(TABLE)
        workers = [asyncio.create_task(load(store, worker)) for worker in range(4)]
        for _ in range(2):
            await twenty_more()
            os.kill(postmaster(data), signal.SIGKILL)
            await twenty_more()
        stop.set()
        await asyncio.gather(*workers)
        complete, partial = await complete_and_partial(store)
        assert acknowledged <= complete
        assert partial == set()
        assert store.database.counts.repeats > 0


WRITER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import open_store
from tests.store.test_faults import TABLE, write

async def main():
    async with open_store(StoreSettings(data=Path(sys.argv[1]))) as store:
        await store.database.execute(TABLE)
        number = int(sys.argv[2])
        while True:
            await write(store, number)
            print(number, flush=True)
            number += 1

asyncio.run(main())
"""


async def test_a_server_killed_while_writing_keeps_all_acknowledged_data(data: Path) -> None:
    root = str(Path(__file__).parents[2])
    rng = random.Random(3)
    acknowledged: set[int] = set()
    for round_ in range(2):
        command = [sys.executable, "-c", WRITER, str(data), str(round_ * 1_000_000), root]
        writer = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL, limit=2**24
        )
        assert writer.stdout is not None
        while not (first := await asyncio.wait_for(writer.stdout.readline(), 60)).strip().isdigit():
            assert first
        await asyncio.sleep(rng.uniform(0.0, 0.2))
        writer.kill()
        rest, _ = await writer.communicate()
        _gone, left = psutil.wait_procs(servers_of(data), timeout=30)
        assert left == []  # the database stops with its server
        # the last line may be cut off in the middle of a number; other lines are log output
        acknowledged |= {int(line) for line in (first + rest).split(b"\n")[:-1] if line.isdigit()}
    async with open_store(StoreSettings(data=data)) as store:
        complete, partial = await complete_and_partial(store)
    assert acknowledged
    assert acknowledged <= complete
    assert partial == set()


@pytest.fixture
def small_disk(data: Path) -> Iterator[Path]:
    """Mount a file system of 192 MB."""
    folder = data / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=192m,mode=0755", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("this user cannot mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_disk_is_reported_and_writes_continue_when_there_is_space(small_disk: Path) -> None:
    settings = StoreSettings(data=small_disk / "data", pool_size=2)
    acknowledged: set[int] = set()
    async with open_store(settings, retry_timeout=1.0) as store:
        await store.database.execute(TABLE)
        filler = small_disk / "filler"
        with pytest.raises(OSError, match="No space"):
            _fill(filler)
        with pytest.raises(StoreUnavailable, match=r"disk is full|does not answer"):
            await _write_until_full(store, acknowledged)
        filler.unlink()
        async with asyncio.timeout(60):
            while True:
                try:
                    await write(store, 1000)
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.2)
        acknowledged.add(1000)
        complete, partial = await complete_and_partial(store)
        assert acknowledged <= complete
        assert partial == set()


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * (1 << 16))


async def _write_until_full(store: Store, acknowledged: set[int]) -> None:
    noise = os.urandom(200_000).hex()
    for number in range(500):
        await write(store, number, noise)
        acknowledged.add(number)
