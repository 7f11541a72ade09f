import asyncio
from typing import TypeVar

import pytest

from gpufleet.errors import MetricsUnavailable
from gpufleet.exporters.prometheus.shared_queries import QueryCache, SharedQuery

T = TypeVar("T")


async def becomes(shared: SharedQuery[T], value: T) -> None:
    async with asyncio.timeout(30):
        while True:
            if await shared.get() == value:
                return
            await asyncio.sleep(0)


async def test_callers_share_one_fetch_and_keep_the_old_value_when_it_fails() -> None:
    now, calls = [0.0], []

    async def fetch() -> int:
        calls.append(now[0])
        await asyncio.sleep(0)
        if now[0] == 20:
            raise MetricsUnavailable("down")
        return len(calls)

    shared = SharedQuery(0, fetch, 15.0, lambda: now[0])
    assert list(await asyncio.gather(shared.get(), shared.get(), shared.get())) == [1, 1, 1]
    now[0] = 20.0
    assert await shared.get() == 1
    now[0] = 40.0
    await becomes(shared, 3)  # no caller waits for a failing source
    assert calls == [0.0, 20.0, 40.0]


async def test_a_cache_stays_within_its_bytes_and_forgets_the_least_used() -> None:
    fetched: list[str] = []

    async def get(key: str) -> str:
        async def fetch() -> str:
            fetched.append(key)
            return key

        return await cache.get(key, lambda _: 60.0, fetch, lambda _: 40)

    cache: QueryCache[str] = QueryCache(100, lambda: 0.0)
    for key in ["a", "b", "a", "c", "a", "b"]:
        assert await get(key) == key
    assert fetched == ["a", "b", "c", "b"]
    assert cache.bytes == 80


async def test_a_caller_that_gives_up_does_not_cut_off_the_others() -> None:
    go = asyncio.Event()

    async def fetch() -> int:
        await go.wait()
        return 7

    cache: QueryCache[int] = QueryCache(100, lambda: 0.0)
    other = asyncio.ensure_future(cache.get("k", lambda _: 60.0, fetch, lambda _: 1))
    hasty = asyncio.ensure_future(cache.get("k", lambda _: 60.0, fetch, lambda _: 1))
    await asyncio.sleep(0)
    hasty.cancel()
    go.set()
    assert await other == 7


async def test_a_failed_fetch_is_not_kept() -> None:
    async def fails() -> int:
        raise MetricsUnavailable("down")

    async def works() -> int:
        return 1

    cache: QueryCache[int] = QueryCache(100, lambda: 0.0)
    with pytest.raises(MetricsUnavailable):
        await cache.get("k", lambda _: 60.0, fails, lambda _: 1)
    assert await cache.get("k", lambda _: 60.0, works, lambda _: 1) == 1


async def test_no_caller_waits_for_a_source_that_hangs() -> None:
    go, now = asyncio.Event(), [0.0]

    async def fetch() -> str:
        if now[0]:
            await go.wait()
        return f"fetched at {now[0]:.0f}"

    shared = SharedQuery("", fetch, 15.0, lambda: now[0], max_wait=0.05)
    assert await shared.get() == "fetched at 0"
    now[0] = 20.0
    async with asyncio.timeout(30):
        assert list(await asyncio.gather(*(shared.get() for _ in range(5)))) == ["fetched at 0"] * 5
        go.set()
        await becomes(shared, "fetched at 20")
    go.clear()
    now[0] = 40.0
    assert await shared.get() == "fetched at 20"
    await shared.close()
