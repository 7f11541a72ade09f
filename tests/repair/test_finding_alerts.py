"""Alerts about findings that no repair follows."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.repair.test_alerts import Receiver, receiver

from gpufleet.kubernetes.crds.gpu_node_status import FindingStatus, GpuNodeStatus, NodeGpus, NodeGpusSpec
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair, RepairSpec
from gpufleet.kubernetes.objects import ObjectMeta
from gpufleet.repair.finding_alerts import FindingAlerts, OpenFinding, findings_of
from gpufleet.runtime.settings import AlertSettings

__all__ = ["receiver"]
NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


class World:
    """What is found, and what operators say."""

    def __init__(self, receiver: Receiver, severity: str = "Degraded") -> None:
        self.now = NOW
        self.findings: list[OpenFinding] = []
        self.specs: list[RepairSpec] = []
        self.receiver = receiver
        routes = AlertSettings(webhook=f"{receiver.url}/hook", alertmanager=receiver.url, severity=severity)
        self.alerts = FindingAlerts(
            routes,
            lambda: self.findings,
            lambda: [GpuRepair(metadata=ObjectMeta(name=each.node_name), spec=each) for each in self.specs],
            now=lambda: self.now,
        )

    async def send(self, minutes: float = 1) -> tuple[list[str], list[str]]:
        """Return the messages, and the nodes of the alerts that fire."""
        self.now += timedelta(minutes=minutes)
        self.receiver.got.clear()
        await self.alerts.send()
        got = self.receiver.got
        texts = [line for path, body in got if path == "/hook" for line in body["text"].split("\n")]
        fired = [each["labels"]["node"] for path, body in got if path != "/hook" for each in body]
        return texts, fired


def slow(node: str = "a", since: datetime = NOW, severity: str = "Degraded") -> OpenFinding:
    return OpenFinding(f"{node}/pcie", node, "pcie-width", severity, f"{node} is slow", since)


async def test_a_degraded_gpu_is_reported_once_and_when_it_is_over(receiver: Receiver) -> None:
    world = World(receiver)
    assert await world.send() == ([], [])
    world.findings = [slow("a"), slow("b")]
    assert await world.send() == (["a is slow", "b is slow"], ["a", "b"])
    assert await world.send() == ([], ["a", "b"])
    world.findings = [slow("b")]
    assert await world.send() == (["No longer observed: a is slow"], ["b"])
    world.findings = [slow("a"), slow("b")]
    assert await world.send() == ([], ["a", "b"]), "the same finding twice in an hour is one message"


async def test_a_new_process_does_not_repeat_old_findings(receiver: Receiver) -> None:
    world = World(receiver)
    world.findings = [slow("old", NOW - timedelta(hours=1)), slow("new", NOW - timedelta(minutes=5))]
    assert await world.send() == (["new is slow"], ["old", "new"])


@pytest.mark.parametrize(
    "spec",
    [
        RepairSpec(node_name="a", silenced_until=NOW + timedelta(hours=1)),
        RepairSpec(node_name="a", acknowledged_by="me", acknowledged_at=NOW + timedelta(seconds=5)),
    ],
    ids=["silenced", "acknowledged"],
)
async def test_findings_of_a_silenced_or_acknowledged_node_are_not_sent(
    receiver: Receiver, spec: RepairSpec
) -> None:
    world = World(receiver)
    world.specs, world.findings = [spec], [slow("a"), slow("b")]
    assert await world.send() == (["b is slow"], ["b"])


async def test_a_finding_after_the_acknowledgement_is_sent(receiver: Receiver) -> None:
    world = World(receiver)
    world.specs = [RepairSpec(node_name="a", acknowledged_by="me", acknowledged_at=NOW)]
    world.findings = [slow("a", NOW + timedelta(seconds=1))]
    assert await world.send() == (["a is slow"], ["a"])


@pytest.mark.parametrize(("least", "sent"), [("Warning", 2), ("Degraded", 1), ("Unhealthy", 0)])
async def test_only_findings_of_the_least_severity_are_sent(
    receiver: Receiver, least: str, sent: int
) -> None:
    world = World(receiver, severity=least)
    world.findings = [slow("a"), slow("b", severity="Warning")]
    assert len((await world.send())[0]) == sent


def test_findings_of_agents_say_what_to_do() -> None:
    found = (
        FindingStatus("xid-79", "Unhealthy", "Node", "XID 79", gpu=1, since=NOW),
        FindingStatus("rails", "Degraded", "Node", "1 of 8 network ports are down: mlx5_3/1", since=NOW),
    )
    report = GpuNodeStatus(
        metadata=ObjectMeta(name="a"), spec=NodeGpusSpec("a"), status=NodeGpus((), 0, findings=found)
    )
    (only,) = findings_of([report])
    assert only.sentence == (
        "Node a has a finding: 1 of 8 network ports are down: mlx5_3/1. "
        "Check cable, transceiver and switch port of the InfiniBand or RoCE ports."
    )
