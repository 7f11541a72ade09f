"""Report findings that no repair follows: degraded GPUs, stragglers, jobs that hang.

Webhooks and mails get a message when a finding is new and when it is over, several findings in one message, and none
about the same finding twice in an hour. What is known is in memory: a process that starts reports the findings of the last
ten minutes only. Alertmanager gets all open ones every minute. Findings of a silenced node, and those that are older than its
acknowledgement, are not sent.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpufleet.gpus.rules import advice
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair
from gpufleet.repair.alerts import PERIOD
from gpufleet.runtime.alert_routes import AlertRoutes
from gpufleet.runtime.settings import AlertSettings

SEVERITIES = ("Warning", "Degraded", "Unhealthy")
_RECENT = timedelta(minutes=10)
_AGAIN = timedelta(hours=1)
_MAX_LINES = 20


@dataclass(frozen=True)
class OpenFinding:
    """A finding that alerts are sent about."""

    key: str
    """Identifies it as long as it lasts."""
    node: str
    signal: str
    severity: str
    sentence: str
    since: datetime


class FindingAlerts:
    """Sends alerts about what `findings` returns; `repairs` returns all repairs, with what operators say about nodes."""

    def __init__(
        self,
        settings: AlertSettings,
        findings: Callable[[], Iterable[OpenFinding]],
        repairs: Callable[[], Iterable[GpuRepair]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        period: float = PERIOD,
    ) -> None:
        self._routes = AlertRoutes(settings)
        self._least = SEVERITIES.index(settings.severity)
        self._findings = findings
        self._repairs = repairs
        self._now = now
        self._period = period
        self._open: dict[str, OpenFinding] = {}
        self._told: dict[str, datetime] = {}
        self._started = now()

    async def run(self) -> None:
        """Send alerts until cancelled."""
        self._started = self._now()
        while True:
            await self.send()
            await asyncio.sleep(self._period)

    async def send(self) -> None:
        """Report what is new, what is over, and what is open."""
        now = self._now()
        found = {each.key: each for each in self._audible(now)}
        new = [each for key, each in found.items() if key not in self._open and self._is_new(each, now)]
        over = [each for key, each in self._open.items() if key not in found and key in self._told]
        self._open = found
        self._told |= {each.key: now for each in new}
        self._told = {key: at for key, at in self._told.items() if key in found or now - at < _AGAIN}
        lines = [each.sentence for each in new]
        lines += [f"No longer observed: {each.sentence}" for each in over]
        if lines:
            more = [f"and {len(lines) - _MAX_LINES} more"] if len(lines) > _MAX_LINES else []
            await self._routes.notify("\n".join([*lines[:_MAX_LINES], *more]))
        await self._routes.fire([self._alert(each, now) for each in found.values()])

    def _is_new(self, finding: OpenFinding, now: datetime) -> bool:
        told = self._told.get(finding.key)
        if told is not None and now - told < _AGAIN:
            return False
        return finding.since >= self._started - _RECENT

    def _audible(self, now: datetime) -> list[OpenFinding]:
        said = {each.metadata.name: each.spec for each in self._repairs()}
        found = []
        for each in self._findings():
            spec = said.get(each.node)
            silenced = spec and spec.silenced_until and spec.silenced_until > now
            known = spec and spec.acknowledged_at and spec.acknowledged_at >= each.since
            if SEVERITIES.index(each.severity) >= self._least and not silenced and not known:
                found.append(each)
        return found

    def _alert(self, finding: OpenFinding, now: datetime) -> dict[str, Any]:
        return {
            "labels": {
                "alertname": "GpuFinding",
                "node": finding.node,
                "cause": finding.signal,
                "finding": finding.key,
                "severity": "info" if finding.severity == "Warning" else "warning",
            },
            "annotations": {"summary": finding.sentence},
            "startsAt": finding.since.isoformat(),
            "endsAt": (now + timedelta(seconds=4 * self._period)).isoformat(),
        }


def findings_of(reports: Iterable[GpuNodeStatus]) -> list[OpenFinding]:
    """Return the findings of agents that make no GPU unhealthy: those that do have a repair."""
    found = []
    for report in reports:
        node = report.metadata.name
        for each in report.status.findings:
            if each.severity == "Unhealthy":
                continue
            gpu = f"GPU {each.gpu}: " if each.gpu is not None else ""
            text = f"Node {node} has a finding: {gpu}{each.message}. {advice(each.signal, each.action)}"
            since = each.since or datetime.min.replace(tzinfo=UTC)
            key = f"{node}/{'' if each.gpu is None else each.gpu}/{each.signal}"
            found.append(OpenFinding(key, node, each.signal, each.severity, text.strip(), since))
    return found
