import asyncio

import asyncpg
import pytest
from tests.waiting import wait_until

from gpufleet.runtime.settings import StoreSettings
from gpufleet.store import Leadership, Store, lead
from gpufleet.store.postgres.locks import MIGRATION_LOCK, advisory_lock


def candidate(settings: StoreSettings, name: str = "job") -> Leadership:
    return Leadership(settings.url, settings, name, retry_interval=0.05)


async def end_sessions(settings: StoreSettings) -> None:
    connection = await asyncpg.connect(settings.url)
    try:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"
        )
    finally:
        await connection.close()


async def test_the_next_candidate_leads_when_the_leader_exits(
    store_settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = candidate(store_settings), candidate(store_settings)
    async with first:
        tries = 0

        async def try_to_lead() -> bool:
            nonlocal tries
            tries += 1
            return await Leadership._try_to_lead(second)

        monkeypatch.setattr(second, "_try_to_lead", try_to_lead)
        waiting = asyncio.create_task(second.__aenter__())
        await wait_until(lambda: tries > 3)
        assert (first.held, waiting.done()) == (True, False)
    assert first.lost.is_set()
    assert await asyncio.wait_for(waiting, 5) is second
    await second.__aexit__()


async def test_jobs_with_different_names_are_independent(store: Store) -> None:
    async with store.leadership("a") as a, asyncio.timeout(5), store.leadership("b") as b:
        assert a.held
        assert b.held


async def test_a_leader_notices_that_its_session_ended(store_settings: StoreSettings) -> None:
    async with candidate(store_settings) as leader:
        await end_sessions(store_settings)
        await asyncio.wait_for(leader.lost.wait(), 5)
        assert not leader.held


async def test_work_is_cancelled_when_leadership_is_lost_and_restarted_when_regained(
    store_settings: StoreSettings,
) -> None:
    started, stopped = asyncio.Queue[int](), asyncio.Event()

    async def work() -> None:
        started.put_nowait(1)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.set()
            raise

    leading = asyncio.create_task(lead(lambda: candidate(store_settings), work))
    await asyncio.wait_for(started.get(), 5)
    await end_sessions(store_settings)
    await asyncio.wait_for(stopped.wait(), 5)
    await asyncio.wait_for(started.get(), 5)
    leading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leading


async def test_an_error_of_the_work_propagates(store_settings: StoreSettings) -> None:
    async def work() -> None:
        raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        await asyncio.wait_for(lead(lambda: candidate(store_settings), work), 5)


def test_no_job_shares_the_lock_of_the_migrations() -> None:
    assert all(advisory_lock(f"job {number}")[1] != MIGRATION_LOCK[1] for number in range(1000))
