"""Background tasks are restarted after a fault and end with the process."""

import asyncio

import pytest
from tests.waiting import wait_until

from gpufleet.runtime.background import Background


async def test_a_task_that_fails_or_returns_is_restarted(capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[int] = []
    third = asyncio.Event()

    async def work() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise RuntimeError("by design")
        if len(calls) == 3:
            third.set()
            await asyncio.Event().wait()

    async with Background(first_backoff=0.01) as background:
        background.start("work", work)
        await asyncio.wait_for(third.wait(), 5)
        assert background.running() == ["work"]
    assert calls == [0, 1, 2]
    assert "by design" in capsys.readouterr().out


async def test_all_tasks_have_ended_when_the_block_is_left() -> None:
    cleaned_up = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.set()

    async with Background() as background:
        background.start("work", work)
        background.once("once", asyncio.sleep(0))
        assert background.running() == ["once", "work"]
        await wait_until(lambda: background.running() == ["work"])
    assert cleaned_up.is_set()
    assert background.running() == []


async def test_a_one_time_task_that_fails_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        raise RuntimeError("by design")

    async with Background() as background:
        background.once("once", work())
        await wait_until(lambda: not background.running())
    assert "by design" in capsys.readouterr().out
