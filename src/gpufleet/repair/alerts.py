"""Report faults and repairs to Slack-compatible webhooks, by mail and to Alertmanager.

Webhooks and mails get one message when a fault is found, when a human must act and when the node is returned.
Alertmanager expects firing alerts again and again, so it gets all open ones every minute; it groups and routes them. An
acknowledged or silenced repair sends nothing.
"""

import asyncio
import smtplib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from typing import Any

import aiohttp

from gpufleet.kubernetes.crds.gpu_repair import GpuRepair, RepairStatus
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.runtime.settings import AlertSettings

PERIOD = 60.0
_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_TELLING = {"Observed", "Cordoned", "Manual", "Healthy"}
"""Phases whose beginning is reported; the others are steps in between."""
_log = get_logger("repair")


class Alerts:
    """Sends alerts; `repairs` returns all repairs."""

    def __init__(
        self,
        settings: AlertSettings,
        repairs: Callable[[], Iterable[GpuRepair]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        period: float = PERIOD,
    ) -> None:
        self._settings = settings
        self._repairs = repairs
        self._now = now
        self._period = period
        self._warnings = RepeatedWarnings(_log)

    async def run(self) -> None:
        """Send open alerts to Alertmanager until cancelled."""
        while True:
            if self._settings.alertmanager:
                await self._post(
                    f"{self._settings.alertmanager.rstrip('/')}/api/v2/alerts",
                    [self._alert(each) for each in self._repairs() if self._open(each)],
                )
            await asyncio.sleep(self._period)

    async def send(self, repair: GpuRepair, before: RepairStatus) -> None:
        """Report a change of phase by webhook and mail, unless the repair is silenced."""
        again = before.phase not in ("Healthy", "Observed") and repair.status.phase == "Cordoned"
        if repair.status.phase not in _TELLING or again or self._silenced(repair):
            return
        text = sentence(repair, before)
        if self._settings.webhook:
            await self._post(self._settings.webhook, {"text": text})
        if self._settings.smtp and self._settings.mail_to:
            try:
                await asyncio.to_thread(self._mail, text)
            except OSError as error:
                self._warnings.warn("mail", "alert_not_sent", route="mail", error=str(error))

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

    async def _post(self, url: str, body: object) -> None:
        route = "alertmanager" if isinstance(body, list) else "webhook"
        if body == []:
            return
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
                session.post(url, json=body, allow_redirects=False) as response,
            ):
                if response.status >= 300:
                    # Not the URL: its path is a secret.
                    error = f"HTTP status {response.status}"
                    self._warnings.warn(route, "alert_not_sent", route=route, error=error)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._warnings.warn(route, "alert_not_sent", route=route, error=type(error).__name__)

    def _mail(self, text: str) -> None:
        message = EmailMessage()
        message["Subject"] = text.partition(": ")[0]
        message["From"] = self._settings.mail_from
        message["To"] = ", ".join(self._settings.mail_to)
        message.set_content(text)
        host, _, port = self._settings.smtp.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=10) as server:
            if server.has_extn("starttls"):
                server.starttls()
            server.send_message(message)


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
