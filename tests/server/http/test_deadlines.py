"""One timer that ends each task in its time."""

import asyncio
import time

from gpufleet.server.http.deadlines import Deadlines


async def _work(deadlines: Deadlines, seconds: float, lift_after: float | None = None) -> tuple[str, float]:
    started = time.perf_counter()
    deadline = deadlines.begin(started)
    try:
        if lift_after is not None:
            await asyncio.sleep(lift_after)
            deadline.lift()
        await asyncio.sleep(seconds)
    except asyncio.CancelledError as error:
        return type(deadline.reason(error)).__name__, time.perf_counter() - started
    finally:
        deadline.lift()
    return "done", time.perf_counter() - started


def _new(seconds: float) -> Deadlines:
    return Deadlines(seconds, asyncio.get_running_loop(), time.perf_counter)


async def test_each_task_ends_in_its_own_time_and_no_other_with_it() -> None:
    deadlines = _new(1)
    tasks = []
    for seconds in (60, 0, 60, 0.05, 60):
        tasks.append(asyncio.create_task(_work(deadlines, seconds)))
        await asyncio.sleep(0.03)
    outcomes = await asyncio.gather(*tasks)
    assert [name for name, _ in outcomes] == ["TimeoutError", "done", "TimeoutError", "done", "TimeoutError"]
    assert all(took >= 1 for name, took in outcomes if name == "TimeoutError")


async def test_what_was_lifted_goes_on_and_later_tasks_still_end() -> None:
    deadlines = _new(1)
    assert (await _work(deadlines, 1.2, lift_after=0.01))[0] == "done"
    assert (await _work(deadlines, 60))[0] == "TimeoutError"


async def test_a_task_cancelled_by_another_is_no_timeout() -> None:
    task = asyncio.create_task(_work(_new(5), 10))
    await asyncio.sleep(0.01)
    task.cancel()
    assert (await task)[0] == "CancelledError"


async def test_a_task_without_limit_outlives_those_that_have_one() -> None:
    deadlines = _new(0.05)

    async def profile() -> str:
        deadlines.unlimited()
        await asyncio.sleep(0.2)
        return "done"

    unlimited, limited = await asyncio.gather(profile(), _work(deadlines, 10))
    assert (unlimited, limited[0]) == ("done", "TimeoutError")
