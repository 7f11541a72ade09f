"""Send messages over the routes of `[alerts]`: a Slack-compatible webhook, and mail."""

import asyncio
import smtplib
from email.message import EmailMessage

import aiohttp
from structlog.typing import FilteringBoundLogger

from gpufleet.runtime.logs import RepeatedWarnings
from gpufleet.runtime.settings import AlertSettings

_TIMEOUT = aiohttp.ClientTimeout(total=10.0)


class AlertRoutes:
    """The configured routes. A message that can't be sent is logged, never raised."""

    def __init__(self, settings: AlertSettings, log: FilteringBoundLogger) -> None:
        self._settings = settings
        self._warnings = RepeatedWarnings(log)

    async def send(self, subject: str, text: str, page: str = "", file_name: str = "") -> None:
        """Send a text by webhook and by mail; the mail has an HTML `page` attached, if there is one."""
        settings = self._settings
        if settings.webhook:
            await self.post("webhook", settings.webhook, {"text": text})
        if settings.smtp and settings.mail_to:
            message = self._message(subject, text)
            if page:
                message.add_attachment(page, subtype="html", filename=file_name)
            try:
                await asyncio.to_thread(self._deliver, message)
            except OSError as error:
                self._warnings.warn("mail", "alert_not_sent", route="mail", error=str(error))

    async def post(self, route: str, url: str, body: object) -> None:
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
