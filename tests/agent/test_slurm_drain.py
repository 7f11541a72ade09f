"""Drain and resume a node of Slurm: with a fake scontrol, and with a real Slurm."""

import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.sources.slurm.real_cluster import Slurm, running_slurm

from gpufleet.agent.monitor import Observation
from gpufleet.agent.slurm_drain import SlurmDrain
from gpufleet.gpus.health import HealthVerdict
from gpufleet.model.node import Health
from gpufleet.runtime.settings import SlurmSettings
from gpufleet.sources.slurm.commands import SlurmCommands

SCONTROL = """#!/bin/sh
dir=$(dirname "$0")
echo "$*" >> "$dir/calls"
if [ -e "$dir/down" ]; then echo "Unable to contact slurm controller" >&2; exit 1; fi
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
    meanwhile: Callable[[], None] = lambda: None
    """What happens while a test runs."""

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
        self.meanwhile()
        return self.results.pop(0)

    async def wait(self, seconds: float) -> tuple[str, str]:
        """Let time pass and return the state in Slurm."""
        end = self.now + seconds
        while self.now < end:
            self.now += 1
            await self.drain.step()
        return (self.folder / "state").read_text().strip(), (self.folder / "reason").read_text().strip()

    def updates(self) -> int:
        return self.lines("updates")

    def lines(self, name: str) -> int:
        file = self.folder / name
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


@pytest.mark.parametrize("results", [[True, True], [True, False]], ids=["passes", "fails"])
async def test_a_human_who_drains_the_node_during_the_tests_is_not_overruled(
    node: Node, results: list[bool]
) -> None:
    node.set("IDLE+DRAIN", "gpufleet: XID 48")
    node.results = results
    node.meanwhile = lambda: node.set("IDLE+DRAIN", "the fan is replaced")
    assert await node.wait(120) == ("IDLE+DRAIN", "the fan is replaced")
    assert node.updates() == 0


async def test_a_node_that_is_down_is_not_resumed(node: Node) -> None:
    node.set("DOWN+DRAIN", "gpufleet: XID 48")
    node.results = [True, True]
    assert (await node.wait(120))[0] == "DOWN+DRAIN", "RESUME would also end the state DOWN"
    assert node.updates() == 0


async def test_a_fault_drains_within_two_seconds_and_slurm_is_not_asked_all_the_time(node: Node) -> None:
    await node.wait(10)
    node.health = Health.UNHEALTHY
    assert (await node.wait(2))[0] == "IDLE+DRAIN"
    before = node.lines("calls")
    await node.wait(300)
    assert node.lines("calls") - before <= 6


async def test_a_fault_drains_soon_after_an_unreachable_controller_is_back(node: Node) -> None:
    await node.wait(10)
    (node.folder / "down").touch()
    node.health = Health.UNHEALTHY
    assert (await node.wait(30))[0] == "IDLE"
    (node.folder / "down").unlink()
    assert (await node.wait(6))[0] == "IDLE+DRAIN"


async def test_a_real_slurm_is_drained_with_a_reason_and_resumed_after_the_tests(tmp_path: Path) -> None:
    with running_slurm(1) as slurm:
        name = slurm.names[0]
        health, now, tested = Health.HEALTHY, 0.0, 0

        def observe() -> Observation:
            reason = "XID 48: uncorrectable ECC error" if health is Health.UNHEALTHY else ""
            return Observation(verdicts={"GPU-0": HealthVerdict(health, reason, 0.0)})

        async def test(uuids: Sequence[str]) -> bool:
            nonlocal tested
            tested += 1
            return True

        commands = SlurmCommands(SlurmSettings(bin=slurm.bin, conf=slurm.configuration), slurm.environment)
        drain = SlurmDrain(commands, name, observe, test, lambda: now)

        async def wait(seconds: int) -> tuple[str, str]:
            nonlocal now
            for _ in range(seconds):
                now += 1
                await drain.step()
            return shown(slurm, name)

        health = Health.UNHEALTHY
        drained = ("IDLE+DRAIN", "gpufleet: XID 48: uncorrectable ECC error")
        assert await wait(2) == drained
        health = Health.HEALTHY
        assert await wait(20) == drained
        assert await wait(120) == ("IDLE", "")
        assert tested == 2
        slurm.command("scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=new firmware")
        health = Health.UNHEALTHY
        await wait(5)
        health = Health.HEALTHY
        assert await wait(200) == ("IDLE+DRAIN", "new firmware")


def shown(slurm: Slurm, node: str) -> tuple[str, str]:
    """Return the state and reason that `scontrol` shows."""
    text = slurm.command("scontrol", "--oneliner", "show", "node", node)
    # A node that was just resumed has to answer the controller's next ping.
    state = text.partition(" State=")[2].split()[0].removesuffix("+NOT_RESPONDING")
    return state, text.partition(" Reason=")[2].partition(" [")[0].strip()
