import asyncio
import dataclasses

import asyncpg
import pytest

from gpufleet.errors import OperationRefused
from gpufleet.runtime.settings import StoreSettings
from gpufleet.store.postgres.migrate import Migration, check, migrations, upgrade

SETTINGS = StoreSettings(start_timeout=5.0)
ONE = Migration(1, "one", "CREATE TABLE one (x int)")
TWO = Migration(2, "two", "CREATE TABLE two (x int); INSERT INTO one VALUES (2)")


async def test_an_empty_database_gets_every_migration_once(empty_postgres_url: str) -> None:
    assert (await check(empty_postgres_url, SETTINGS)).pending == migrations()
    assert await upgrade(empty_postgres_url, SETTINGS) == migrations()
    assert await upgrade(empty_postgres_url, SETTINGS) == ()
    state = await check(empty_postgres_url, SETTINGS)
    assert (state.applied, state.pending) == (migrations()[-1].number, ())


def test_migrations_are_numbered_without_gaps() -> None:
    assert [step.number for step in migrations()] == list(range(1, len(migrations()) + 1))


async def test_servers_that_start_at_the_same_time_apply_a_migration_once(empty_postgres_url: str) -> None:
    done = await asyncio.gather(*(upgrade(empty_postgres_url, SETTINGS, (ONE, TWO)) for _ in range(5)))
    assert sorted(len(steps) for steps in done) == [0, 0, 0, 0, 2]


async def test_a_failing_migration_is_rolled_back_and_earlier_ones_stay(empty_postgres_url: str) -> None:
    broken = dataclasses.replace(TWO, sql="CREATE TABLE two (x int); SELECT 1/0")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await upgrade(empty_postgres_url, SETTINGS, (ONE, broken))
    assert (await check(empty_postgres_url, SETTINGS, (ONE, TWO))).pending == (TWO,)
    assert await upgrade(empty_postgres_url, SETTINGS, (ONE, TWO)) == (TWO,)


async def test_a_migration_edited_after_it_was_applied_is_refused(empty_postgres_url: str) -> None:
    await upgrade(empty_postgres_url, SETTINGS, (ONE,))
    edited = dataclasses.replace(ONE, sql="CREATE TABLE one (x bigint)")
    with pytest.raises(OperationRefused, match="migration 0001_one differs from the one that was applied"):
        await upgrade(empty_postgres_url, SETTINGS, (edited, TWO))


async def test_line_endings_do_not_count_as_an_edit(empty_postgres_url: str) -> None:
    lines = Migration(1, "one", "CREATE TABLE one (\n x int\n)")
    await upgrade(empty_postgres_url, SETTINGS, (lines,))
    windows = dataclasses.replace(lines, sql=lines.sql.replace("\n", "\r\n"))
    assert await upgrade(empty_postgres_url, SETTINGS, (windows,)) == ()


async def test_a_database_of_a_newer_version_is_refused(empty_postgres_url: str) -> None:
    await upgrade(empty_postgres_url, SETTINGS, (ONE, TWO))
    with pytest.raises(OperationRefused, match=r"newer gpufleet \(migration 2, this version has 1\)"):
        await upgrade(empty_postgres_url, SETTINGS, (ONE,))
