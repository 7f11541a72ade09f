"""Signals: the first stops the main task in an orderly way, later ones do no harm."""

import subprocess
import sys

import pytest

HEAD = """
import asyncio, os, signal, uvloop
from gpufleet.runtime.process import run_until_stopped, stop_on_signals
"""

SIGNALS_AFTER_THE_END = """
async def work():
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(work())
    os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGINT)
print("ended")
"""

SIGNAL_DURING_CLEANUP = """
async def work(stopper):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(60)
    finally:
        handled = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handled.set)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGUSR1)  # handled after SIGINT
        await handled.wait()
        print("closed")

print(run_until_stopped(work))
"""

GENTLE_STOP = """
async def work(stopper):
    stops = asyncio.Queue()
    stopper.on_stop = lambda: stops.put_nowait("stopped")
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        print(await stops.get())

print(run_until_stopped(work, uvloop.new_event_loop))
"""

CANCELLED_WITHOUT_A_SIGNAL = """
async def work(stopper):
    asyncio.current_task().cancel()
    await asyncio.sleep(60)

try:
    run_until_stopped(work)
except asyncio.CancelledError:
    print("cancelled")
"""


NEVER_STOPS = """
async def work(stopper):
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        try:
            await asyncio.create_task(asyncio.sleep(60), name="waits for ever")
        except asyncio.CancelledError:
            print("swallowed", flush=True)

run_until_stopped(work, uvloop.new_event_loop, stop_seconds=0.2)
"""

SLOW_THREAD = """
import time
async def work(stopper):
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(60)

run_until_stopped(work, stop_seconds=0.2)
"""


@pytest.mark.parametrize(
    ("code", "name"),
    [
        pytest.param(NEVER_STOPS, "waits for ever", id="a task that swallows its cancellation"),
        pytest.param(SLOW_THREAD, "asyncio_0", id="a thread"),
    ],
)
def test_a_watchdog_ends_a_process_that_does_not_stop_and_names_what_runs(code: str, name: str) -> None:
    done = subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    [line] = [line for line in (done.stdout + done.stderr).splitlines() if "stop_timed_out" in line]
    assert name in line


@pytest.mark.parametrize(
    ("code", "output"),
    [
        pytest.param(SIGNALS_AFTER_THE_END, "ended\n", id="after the end they do not look like a kill"),
        pytest.param(SIGNAL_DURING_CLEANUP, "closed\n0\n", id="a second one does not interrupt cleanup"),
        pytest.param(GENTLE_STOP, "stopped\nstopped\n0\n", id="each one calls on_stop"),
        pytest.param(CANCELLED_WITHOUT_A_SIGNAL, "cancelled\n", id="other cancellations are not hidden"),
    ],
)
def test_signals(code: str, output: str) -> None:
    done = subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
