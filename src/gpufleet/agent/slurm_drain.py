"""Drain this node in Slurm while a GPU is unhealthy, and resume it after two tests.

The state is Slurm's own: the reason of a drain begins with `gpufleet:` if it is ours. A node that a human drained, or
whose reason a human changed, is left alone. Slurm starts no job on a drained node and lets running ones end. A node whose
test fails stays drained for a human.
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
PERIOD = 5.0
CHECK = 60.0
"""Seconds between looks at Slurm while all GPUs are healthy."""
SETTLE = 30.0
"""Seconds for which all GPUs must be healthy before they are tested."""
PROOFS = 2
_DRAINED = {"DRAIN", "DRAINED", "DRAINING"}
_BUSY = {"ALLOCATED", "MIXED", "COMPLETING", "DRAINING"}
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
        self._checked_at = float("-inf")
        self._warnings = RepeatedWarnings(_log)

    async def run(self) -> None:
        """Drain and resume until cancelled."""
        while True:
            try:
                await self.check()
            except SlurmUnavailable as error:
                self._warnings.warn("slurm", "slurm_node_not_changed", node=self._node, error=str(error))
            await asyncio.sleep(PERIOD)

    async def check(self) -> None:
        """Compare the health of the GPUs with Slurm once."""
        observation, now = self._observe(), self._clock()
        if not observation.verdicts:
            return
        reasons = [each.reason for each in observation.verdicts.values() if each.health is Health.UNHEALTHY]
        known = all(each.health is not Health.UNKNOWN for each in observation.verdicts.values())
        if reasons or not known:
            self._healthy_since = None
        elif self._healthy_since is None:
            self._healthy_since = now
        if not reasons and now - self._checked_at < CHECK and self._healthy_since != now:
            return
        self._checked_at = now
        record = await self._commands.node(self._node)
        if record is None:
            self._warnings.warn("node", "slurm_has_no_such_node", node=self._node)
            return
        state, reason = set(words(record.state, record.state_flags)), text(record.reason)
        if reasons and not state & _DRAINED:
            await self._drain(OURS + reasons[0])
        elif reason.startswith(OURS) and state & _DRAINED and not state & _BUSY and self._settled(now):
            await self._resume_after_tests(reason)

    def _settled(self, now: float) -> bool:
        return self._healthy_since is not None and now - self._healthy_since >= SETTLE

    async def _resume_after_tests(self, reason: str) -> None:
        uuids = [device.uuid for device in self._observe().devices]
        for _ in range(PROOFS):
            if not await self._test(uuids):
                await self._drain(FAILED + reason.removeprefix(OURS))
                return
        if any(each.health is not Health.HEALTHY for each in self._observe().verdicts.values()):
            return
        _log.info("slurm_node_resumed", node=self._node, reason=reason)
        await self._commands.update_node(self._node, "RESUME")

    async def _drain(self, reason: str) -> None:
        _log.warning("slurm_node_drained", node=self._node, reason=reason)
        await self._commands.update_node(self._node, "DRAIN", reason[:_MAX_REASON])
