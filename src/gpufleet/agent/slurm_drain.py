"""Drain this node in Slurm while a GPU is unhealthy, and resume it after two tests.

The state is Slurm's own: the reason of a drain begins with `gpufleet:` if it is ours. A node that a human drained, or
whose reason a human changed, is left alone, also if that happened during the tests. Slurm starts no job on a drained
node and lets running ones end. A node whose test fails stays drained for a human. Only an idle node is resumed, because
RESUME would also return one that is down.

Slurm's controller is asked when the health of the node changes, and otherwise once a minute.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from gpufleet.agent.monitor import Observation
from gpufleet.errors import SlurmUnavailable
from gpufleet.model.node import Health
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.sources.slurm.commands import SlurmCommands
from gpufleet.sources.slurm.wire import text, words

OURS, FAILED = "gpufleet: ", "gpufleet test failed: "
"""How the reasons of our drains begin; after a failed test a human must resume."""
PERIOD = 1.0
"""Seconds between looks at the health of the GPUs."""
CHECK = 60.0
"""Seconds between looks at Slurm while the health does not change."""
RETRY = 5.0
"""Seconds until a failed command is repeated."""
SETTLE = 30.0
"""Seconds for which all GPUs must be healthy before they are tested."""
PROOFS = 2
_DRAINED = {"DRAIN", "DRAINED", "DRAINING"}
_NOT_IDLE = {"ALLOCATED", "MIXED", "COMPLETING", "DRAINING", "DOWN", "FAIL", "FAILING", "ERROR"}
_MAX_REASON = 250
_log = get_logger("agent")

Test = Callable[[Sequence[str]], Awaitable[bool]]
"""Tests the GPUs with these UUIDs; returns whether all passed."""


async def run_diag(uuids: Sequence[str]) -> bool:
    """Test GPUs with `gpufleet diag`."""
    command = (sys.executable, "-m", "gpufleet", "diag", "--gpu", ",".join(uuids))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        return await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


class SlurmDrain:
    """Keeps one node of Slurm drained while it has a fault."""

    def __init__(
        self,
        commands: SlurmCommands,
        node: str,
        observe: Callable[[], Observation],
        test: Test = run_diag,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._commands = commands
        self._node = node
        self._observe = observe
        self._test = test
        self._clock = clock
        self._healthy_since: float | None = None
        self._faulty = False
        self._next_look = float("-inf")
        self._warnings = RepeatedWarnings(_log)

    async def run(self) -> None:
        """Drain and resume until cancelled."""
        while True:
            await self.step()
            await asyncio.sleep(PERIOD)

    async def step(self) -> None:
        """Look at the health of the GPUs, and at Slurm if it has changed or a look is due."""
        observation, now = self._observe(), self._clock()
        if not observation.verdicts:
            return
        reasons = [each.reason for each in observation.verdicts.values() if each.health is Health.UNHEALTHY]
        known = all(each.health is not Health.UNKNOWN for each in observation.verdicts.values())
        if reasons or not known:
            self._healthy_since = None
        elif self._healthy_since is None:
            self._healthy_since = now
        changed, self._faulty = bool(reasons) != self._faulty, bool(reasons)
        if not changed and now < self._next_look:
            return
        try:
            await self._compare(reasons, now)
            self._next_look = now + CHECK
        except SlurmUnavailable as error:
            self._next_look = now + RETRY
            self._warnings.warn("slurm", "slurm_node_not_changed", node=self._node, error=str(error))

    async def _compare(self, reasons: Sequence[str], now: float) -> None:
        """Drain or resume the node, if Slurm's state is not what the health asks for."""
        state, reason = await self._state()
        if reasons and state and not state & _DRAINED:
            await self._drain(OURS + reasons[0])
        elif reason.startswith(OURS) and _is_drained_and_idle(state) and self._settled(now):
            await self._resume_after_tests(reason)

    async def _state(self) -> tuple[set[str], str]:
        """Return the state of the node and its reason; nothing if Slurm does not have the node."""
        record = await self._commands.node(self._node)
        if record is None:
            self._warnings.warn("node", "slurm_has_no_such_node", node=self._node)
            return set(), ""
        return set(words(record.state, record.state_flags)), text(record.reason)

    def _settled(self, now: float) -> bool:
        return self._healthy_since is not None and now - self._healthy_since >= SETTLE

    async def _resume_after_tests(self, reason: str) -> None:
        uuids = [device.uuid for device in self._observe().devices]
        passed = True
        for _ in range(PROOFS):
            passed = passed and await self._test(uuids)
        state, reason_now = await self._state()
        if reason_now != reason or not _is_drained_and_idle(state):
            return  # a human has changed it during the tests
        if not passed:
            await self._drain(FAILED + reason.removeprefix(OURS))
            return
        if any(each.health is not Health.HEALTHY for each in self._observe().verdicts.values()):
            return
        _log.info("slurm_node_resumed", node=self._node, reason=reason)
        await self._commands.update_node(self._node, "RESUME")

    async def _drain(self, reason: str) -> None:
        _log.warning("slurm_node_drained", node=self._node, reason=reason)
        await self._commands.update_node(self._node, "DRAIN", reason[:_MAX_REASON])


def _is_drained_and_idle(state: set[str]) -> bool:
    return bool(state & _DRAINED) and not state & _NOT_IDLE
