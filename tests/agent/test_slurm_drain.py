"""Drain and resume a node of Slurm, with a fake scontrol."""

import stat
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpufleet.agent.monitor import Observation
from gpufleet.agent.slurm_drain import SlurmDrain
from gpufleet.gpus.health import HealthVerdict
from gpufleet.model.node import Health
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm.commands import SlurmCommands

SCONTROL = """#!/bin/sh
dir=$(dirname "$0")
if [ "$1" = update ]; then
  for word in "$@"; do case "$word" in
    State=DRAIN) echo IDLE+DRAIN > "$dir/state";;
    State=RESUME) echo IDLE > "$dir/state"; echo > "$dir/reason";;
    Reason=*) echo "${word#Reason=}" > "$dir/reason";;
  esac; done
  echo "$*" >> "$dir/updates"
else
  echo "NodeName=gpu1 NodeHostName=gpu1 State=$(cat "$dir/state") Gres=gpu:h100:8 Reason=$(cat "$dir/reason")"
fi
"""


@dataclass
class Node:
    """A node of Slurm, its GPUs and the agent's view of both."""

    folder: Path
    health: Health = Health.HEALTHY
    now: float = 0.0
    results: list[bool] = field(default_factory=list)
    """Results of tests to come."""

    def __post_init__(self) -> None:
        program = self.folder / "scontrol"
        program.write_text(SCONTROL)
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        self.set("IDLE")
        commands = SlurmCommands(SlurmSettings(bin=self.folder))
        self.drain = SlurmDrain(commands, "gpu1", self.observe, self.test, lambda: self.now)

    def set(self, state: str, reason: str = "") -> None:
        (self.folder / "state").write_text(state)
        (self.folder / "reason").write_text(reason)

    def observe(self) -> Observation:
        reason = "XID 48: uncorrectable ECC error" if self.health is Health.UNHEALTHY else ""
        return Observation(verdicts={"GPU-0": HealthVerdict(self.health, reason, 0.0)})

    async def test(self, uuids: object) -> bool:
        return self.results.pop(0)

    async def wait(self, seconds: float) -> tuple[str, str]:
        """Let time pass and return the state in Slurm."""
        end = self.now + seconds
        while self.now < end:
            self.now += 5
            await self.drain.check()
        return (self.folder / "state").read_text().strip(), (self.folder / "reason").read_text().strip()

    def updates(self) -> int:
        file = self.folder / "updates"
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_fault_drains_the_node_once_and_two_tests_resume_it(node: Node) -> None:
    assert await node.wait(10) == ("IDLE", "")
    node.health = Health.UNHEALTHY
    assert await node.wait(30) == ("IDLE+DRAIN", "gpufleet: XID 48: uncorrectable ECC error")
    assert node.updates() == 1
    node.health, node.results = Health.HEALTHY, [True, True]
    assert (await node.wait(20))[0] == "IDLE+DRAIN"
    assert await node.wait(120) == ("IDLE", "")
    assert node.updates() == 2


async def test_a_test_that_fails_the_second_time_leaves_the_node_to_a_human(node: Node) -> None:
    node.health = Health.UNHEALTHY
    await node.wait(5)
    node.health, node.results = Health.HEALTHY, [True, False]
    failed = ("IDLE+DRAIN", "gpufleet test failed: XID 48: uncorrectable ECC error")
    assert await node.wait(120) == failed
    assert await node.wait(600) == failed, "it is not tested again"


async def test_a_drain_of_a_human_is_left_alone(node: Node) -> None:
    node.set("IDLE+DRAIN", "new firmware")
    node.health = Health.UNHEALTHY
    assert await node.wait(60) == ("IDLE+DRAIN", "new firmware")
    node.health = Health.HEALTHY
    assert await node.wait(300) == ("IDLE+DRAIN", "new firmware")
    assert node.updates() == 0


async def test_jobs_end_before_the_node_is_tested(node: Node) -> None:
    node.set("MIXED+DRAIN", "gpufleet: XID 48")
    assert (await node.wait(300))[0] == "MIXED+DRAIN"
    node.results = [True, True]
    node.set("IDLE+DRAIN", "gpufleet: XID 48")
    assert await node.wait(120) == ("IDLE", "")
