"""What GpuQueues allowed, stored one after the other."""

import asyncio

from gpufleet.runtime.settings import AccountingSettings
from gpufleet.store import Store
from gpufleet.store.prune import RetentionSettings, prune

DAY = 86_400.0


async def rules(store: Store, start: float = 0.0, end: float = 1e12) -> list[tuple[float, bytes]]:
    return await store.queue_rules.overlapping("prod", start, end)


async def test_rules_are_stored_when_they_change(store: Store) -> None:
    await store.accounted.open("prod", 0.0)
    for at, text in ((10.0, b'{"a": 1}'), (20.0, b'{"a": 1}'), (30.0, b'{"a": 2}'), (40.0, b'{"a": 1}')):
        await store.queue_rules.record("prod", text, at)
    assert await rules(store) == [(10.0, b'{"a": 1}'), (30.0, b'{"a": 2}'), (40.0, b'{"a": 1}')]
    assert await rules(store, 30.0, 40.0) == [(30.0, b'{"a": 2}')]
    assert await rules(store, 50.0) == [(40.0, b'{"a": 1}')]


async def test_two_servers_store_the_same_rules_once(store: Store) -> None:
    await store.accounted.open("prod", 0.0)
    await asyncio.gather(*(store.queue_rules.record("prod", b"{}", 10.0 + at) for at in range(8)))
    assert len(await rules(store)) == 1


async def test_old_rules_expire_and_the_present_ones_stay(store: Store) -> None:
    await store.accounted.open("prod", 0.0)
    for at in (1.0, 2.0):
        await store.queue_rules.record("prod", f'{{"at": {at}}}'.encode(), at)
    store.database.clock = f"to_timestamp({4000 * DAY})"
    await store.accounted.set_stored_until("prod", 4000 * DAY)
    await prune(store, RetentionSettings(AccountingSettings(), {}))
    assert [start for start, _ in await rules(store)] == [2.0]
