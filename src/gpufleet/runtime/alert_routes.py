"""Send messages over the routes of `[alerts]`: a Slack-compatible webhook, mail, and Alertmanager."""

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
    """The configured routes. A message that can't be sent is logged, never raised."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings = settings
        self._warnings = RepeatedWarnings(_log)

    async def notify(self, text: str) -> None:
        """Send a text whose first words, up to a colon, are the subject."""
        await self.send(text.partition("\n")[0].partition(": ")[0], text)

    async def fire(self, alerts: list[dict[str, Any]]) -> None:
        """Send the firing alerts to Alertmanager, which expects them again and again."""
        if self._settings.alertmanager and alerts:
            url = f"{self._settings.alertmanager.rstrip('/')}/api/v2/alerts"
            await self._post("alertmanager", url, alerts)

    async def send(self, subject: str, text: str, attached_csv: bytes = b"", file_name: str = "") -> None:
        """Send a text by webhook and by mail; the mail has the CSV file attached, if there is one."""
        settings = self._settings
        if settings.webhook:
            await self._post("webhook", settings.webhook, {"text": text})
        if settings.smtp and settings.mail_to:
            message = self._message(subject, text)
            if attached_csv:
                message.add_attachment(attached_csv, maintype="text", subtype="csv", filename=file_name)
            try:
                await asyncio.to_thread(self._deliver, message)
            except (OSError, smtplib.SMTPException) as error:
                self._warnings.warn("mail", "alert_not_sent", route="mail", error=str(error))

    async def _post(self, route: str, url: str, body: object) -> None:
        """Post JSON. Redirects are not followed: the path of the URL is usually a secret, so it is not logged."""
        try:
            async with (
                aiohttp.ClientSession(timeout=_TIMEOUT) as session,
                session.post(url, json=body, allow_redirects=False) as response,
            ):
                if response.status >= 300:
                    error = f"HTTP status {response.status}"
                    self._warnings.warn(route, "alert_not_sent", route=route, error=error)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            self._warnings.warn(route, "alert_not_sent", route=route, error=type(error).__name__)

    def _message(self, subject: str, text: str) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = subject
        message["From"] = self._settings.mail_from
        message["To"] = ", ".join(self._settings.mail_to)
        message.set_content(text)
        return message

    def _deliver(self, message: EmailMessage) -> None:
        host, _, port = self._settings.smtp.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=10) as server:
            if server.has_extn("starttls"):
                server.starttls()
            server.send_message(message)
