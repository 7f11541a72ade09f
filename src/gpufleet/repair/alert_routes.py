"""Send alerts to Slack-compatible webhooks, by mail and to Alertmanager."""

import asyncio
import smtplib
from email.message import EmailMessage
from typing import Any

import aiohttp

from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.runtime.settings import AlertSettings

_TIMEOUT = aiohttp.ClientTimeout(total=10.0)
_log = get_logger("alerts")


class AlertRoutes:
    """The receivers that are configured. A receiver that fails is logged and stops nothing."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings = settings
        self._warnings = RepeatedWarnings(_log)

    async def notify(self, text: str) -> None:
        """Send a message by webhook and mail."""
        if self._settings.webhook:
            await self._post(self._settings.webhook, {"text": text})
        if self._settings.smtp and self._settings.mail_to:
            try:
                await asyncio.to_thread(self._mail, text)
            except (OSError, smtplib.SMTPException) as error:
                self._warnings.warn("mail", "alert_not_sent", route="mail", error=str(error))

    async def fire(self, alerts: list[dict[str, Any]]) -> None:
        """Send the firing alerts to Alertmanager, which expects them again and again."""
        if self._settings.alertmanager and alerts:
            await self._post(f"{self._settings.alertmanager.rstrip('/')}/api/v2/alerts", alerts)

    async def _post(self, url: str, body: object) -> None:
        route = "alertmanager" if isinstance(body, list) else "webhook"
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
        message["Subject"] = text.partition("\n")[0].partition(": ")[0]
        message["From"] = self._settings.mail_from
        message["To"] = ", ".join(self._settings.mail_to)
        message.set_content(text)
        host, _, port = self._settings.smtp.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=10) as server:
            if server.has_extn("starttls"):
                server.starttls()
            server.send_message(message)
