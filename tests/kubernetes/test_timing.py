"""The rate limiter and the backoff, on a fake clock."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.kubernetes.client.timing import Backoff, RateLimiter, Timing


class Clock:
    """A fake clock; sleeping only advances it."""

    def __init__(self) -> None:
        self.time = 0.0

    async def sleep(self, seconds: float) -> None:
        self.time += seconds

    @property
    def timing(self) -> Timing:
        return Timing(monotonic=lambda: self.time, sleep=self.sleep, random=lambda: 0.5)


@given(
    per_second=st.floats(0.5, 200),
    burst=st.integers(1, 50),
    pauses=st.lists(st.floats(0, 2), min_size=1, max_size=80),
)
def test_no_interval_has_more_requests_than_rate_and_burst_allow(
    per_second: float, burst: int, pauses: list[float]
) -> None:
    async def play() -> list[float]:
        clock, sent = Clock(), []
        rate = RateLimiter(per_second, burst, clock.timing)
        for pause in pauses:
            clock.time += pause
            await rate.acquire()
            sent.append(clock.time)
        return sent

    sent = asyncio.run(play())
    for start in range(len(sent)):
        for end in range(start, len(sent)):
            allowed = burst + per_second * (sent[end] - sent[start])
            assert end - start + 1 <= allowed + 1e-6


async def test_a_burst_is_sent_immediately_and_the_rest_at_the_rate() -> None:
    clock = Clock()
    rate = RateLimiter(10, 5, clock.timing)
    times = []
    for _ in range(8):
        await rate.acquire()
        times.append(round(clock.time, 6))
    assert times == [0, 0, 0, 0, 0, 0.1, 0.2, 0.3]


async def test_waiting_callers_keep_their_order() -> None:
    rate = RateLimiter(200, 1, Timing())
    order: list[int] = []

    async def one(number: int) -> None:
        await rate.acquire()
        order.append(number)

    await asyncio.gather(*(one(number) for number in range(10)))
    assert order == list(range(10))


@given(failures=st.integers(1, 100_000), chance=st.floats(0, 1))
def test_a_delay_is_between_half_and_all_of_its_step_and_never_above_the_maximum(
    failures: int, chance: float
) -> None:
    backoff = Backoff(initial=0.2, maximum=30.0)
    step = min(30.0, 0.2 * 2 ** min(failures - 1, 60))
    assert step / 2 <= backoff.delay(failures, chance) <= step
