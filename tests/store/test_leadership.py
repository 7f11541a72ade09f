import asyncio

import asyncpg
import pytest

from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Leadership, Store, lead
from gpufleet.store.postgres.leadership import lock_of
from gpufleet.store.postgres.migrate import LOCK


def stand(settings: StoreSettings, name: str = "job") -> Leadership:
    return Leadership(settings.url, settings, name, ask_every=0.05)


async def end_sessions(settings: StoreSettings) -> None:
    connection = await asyncpg.connect(settings.url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        )
    finally:
        await connection.close()


async def test_one_leads_and_the_next_follows_when_it_ends(store_settings: StoreSettings) -> None:
    first, second = stand(store_settings), stand(store_settings)
    async with first:
        waiting = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0.3)
        assert (first.held, waiting.done()) == (True, False)
    assert first.lost.is_set()
    assert await asyncio.wait_for(waiting, 5) is second
    await second.__aexit__()


async def test_jobs_of_different_names_do_not_wait_for_each_other(store: Store) -> None:
    async with store.leadership("a") as a, asyncio.timeout(5), store.leadership("b") as b:
        assert a.held
        assert b.held


async def test_a_leader_whose_session_ends_knows_it(store_settings: StoreSettings) -> None:
    async with stand(store_settings) as leader:
        await end_sessions(store_settings)
        await asyncio.wait_for(leader.lost.wait(), 5)
        assert not leader.held


async def test_work_is_stopped_when_the_job_is_lost_and_begun_again_when_it_is_back(
    store_settings: StoreSettings,
) -> None:
    begun, stopped = asyncio.Queue[int](), asyncio.Event()

    async def work() -> None:
        begun.put_nowait(1)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    leading = asyncio.create_task(lead(lambda: stand(store_settings), work))
    await asyncio.wait_for(begun.get(), 5)
    await end_sessions(store_settings)
    await asyncio.wait_for(stopped.wait(), 5)
    await asyncio.wait_for(begun.get(), 5)
    leading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leading


async def test_an_error_of_the_work_is_not_swallowed(store_settings: StoreSettings) -> None:
    async def work() -> None:
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        await asyncio.wait_for(lead(lambda: stand(store_settings), work), 5)


def test_no_job_shares_the_lock_of_the_migrations() -> None:
    assert all(lock_of(f"job {number}")[1] != LOCK[1] for number in range(1000))
