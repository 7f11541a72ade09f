"""Report faults and repairs.

Webhooks and mails get one message when a fault is found, when a human must act and when the node is returned.
Alertmanager expects firing alerts again and again, so it gets all open ones every minute; it groups and routes them. An
acknowledged or silenced repair sends nothing.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from gpufleet.kubernetes.crds.gpu_repair import GpuRepair, RepairStatus
from gpufleet.runtime.alert_routes import AlertRoutes
from gpufleet.runtime.settings import AlertSettings

PERIOD = 60.0
_TELLING = {"Observed", "Cordoned", "Manual", "Healthy"}
"""Phases whose beginning is reported; the others are steps in between."""


class Alerts:
    """Sends alerts; `repairs` returns all repairs."""

    def __init__(
        self,
        settings: AlertSettings,
        repairs: Callable[[], Iterable[GpuRepair]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        period: float = PERIOD,
    ) -> None:
        self._routes = AlertRoutes(settings)
        self._repairs = repairs
        self._now = now
        self._period = period

    async def run(self) -> None:
        """Send open alerts to Alertmanager until cancelled."""
        while True:
            await self._routes.fire([self._alert(each) for each in self._repairs() if self._open(each)])
            await asyncio.sleep(self._period)

    async def send(self, repair: GpuRepair, before: RepairStatus) -> None:
        """Report a change of phase by webhook and mail, unless the repair is silenced."""
        again = before.phase not in ("Healthy", "Observed") and repair.status.phase == "Cordoned"
        if repair.status.phase in _TELLING and not again and not self._silenced(repair):
            await self._routes.notify(sentence(repair, before))

    def _silenced(self, repair: GpuRepair) -> bool:
        until = repair.spec.silenced_until
        if until is not None and until > self._now():
            return True
        known = repair.spec.acknowledged_episode == repair.status.episode
        return bool(repair.spec.acknowledged_by) and known and repair.status.phase != "Healthy"

    def _open(self, repair: GpuRepair) -> bool:
        return repair.status.phase != "Healthy" and not self._silenced(repair)

    def _alert(self, repair: GpuRepair) -> dict[str, Any]:
        status = repair.status
        return {
            "labels": {
                "alertname": "GpuFault",
                "node": repair.metadata.name,
                "cause": status.cause,
                "severity": "critical" if status.phase == "Manual" else "warning",
            },
            "annotations": {
                "summary": sentence(repair, status),
                "phase": status.phase,
                "message": status.message,
            },
            "startsAt": (status.opened or self._now()).isoformat(),
            "endsAt": (self._now() + timedelta(seconds=4 * self._period)).isoformat(),
        }


def sentence(repair: GpuRepair, before: RepairStatus) -> str:
    """Return what happened to the node, in a sentence."""
    status, node = repair.status, repair.metadata.name
    cause = status.cause_message or before.cause_message or before.cause
    match status.phase:
        case "Healthy":
            return f"Node {node} is back: {status.message} (it had: {cause})"
        case "Manual":
            return f"Node {node} needs a human: {status.message} (cause: {cause})"
        case _:
            return f"Node {node} has a GPU fault: {cause}"
