"""Run the webhook: watch claims, keep certificates valid, answer the API server."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from gpufleet.kubernetes import DEVICE_CLASSES, KubeClient, Reflector, Selection
from gpufleet.kubernetes.certificates.store import serving_context
from gpufleet.kubernetes.client.errors import Forbidden, ObjectNotFound
from gpufleet.kubernetes.resource_claims import DEVICE_CLASS
from gpufleet.runtime.background import Background
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import KubernetesSettings, Settings, WebhookSettings
from gpufleet.webhook.certificate_store import FileCertificates, WebhookCertificates
from gpufleet.webhook.claim_lookup import ClaimLookup
from gpufleet.webhook.pod_admission import PodRules
from gpufleet.webhook.server import Webhook

DRAIN_S = 5.0
"""Seconds in which calls are still answered after SIGTERM, until API servers stop sending them."""

SYNC_SECONDS = 10.0
"""How long the start waits for the list of DeviceClasses."""


async def run_webhook(settings: Settings, on_started: Callable[[str], None]) -> None:
    """Serve until cancelled; `on_started` gets the URL. Calls are answered for `DRAIN_S` after that."""
    own = settings[WebhookSettings]
    async with AsyncExitStack() as closing:
        listening = closing.enter_context(bind(own.host, own.port))
        client = await closing.enter_async_context(KubeClient.from_settings(settings[KubernetesSettings]))
        context = serving_context()
        from_files = own.certificate_file is not None or own.key_file is not None
        certificates = (
            FileCertificates(own, context) if from_files else WebhookCertificates(client, own, context)
        )
        await certificates.refresh()
        claims = ClaimLookup(client)
        background = await closing.enter_async_context(Background())
        background.start("claims", claims.watch.run)
        background.start("certificates", certificates.run)
        by_resource_claim = await _delivery(client, own.delivery, background)
        webhook = Webhook(claims, PodRules.from_settings(own), by_resource_claim)
        async with webhook.listener().serving(listening, tls=context, drain=DRAIN_S):
            on_started(address_of(listening, "https"))
            await asyncio.Event().wait()


async def _delivery(client: KubeClient, setting: str, background: Background) -> Callable[[], bool]:
    """Return a function that tells whether ResourceClaims deliver GPUs; `auto` follows the scheduler's DeviceClass."""
    if setting != "auto":
        return lambda: setting == "dra"
    classes = Reflector(client, DEVICE_CLASSES, Selection(fields=f"metadata.name={DEVICE_CLASS}"))
    try:
        await client.page(DEVICE_CLASSES, limit=1)
    except (ObjectNotFound, Forbidden):
        return lambda: False
    background.start("device classes", classes.run)
    with suppress(TimeoutError):
        async with asyncio.timeout(SYNC_SECONDS):
            await classes.synced()
    return lambda: classes.cache.get(DEVICE_CLASS) is not None
