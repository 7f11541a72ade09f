"""Run the admission webhook: pods with a claim learn their GPUs, claims are checked.

It serves HTTPS with a certificate of its own, shared by all replicas in a Secret, and keeps the caBundle
of its webhook configurations right. With --certificate-file and --key-file it serves those instead and
leaves the caBundle to whoever made them (cert-manager, for one).

  gpufleet webhook --host 0.0.0.0 --namespace gpufleet
  gpufleet webhook --print-configurations | kubectl apply -f -    # what the API server has to be told
"""

import argparse
import asyncio
import signal
from contextlib import AsyncExitStack

from gpufleet.runtime.settings import KubernetesSettings, Settings, WebhookSettings

GROUPS: tuple[type, ...] = (WebhookSettings, KubernetesSettings)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the printing of manifests."""
    parser.add_argument(
        "--print-configurations",
        action="store_true",
        help="Print the webhook configurations to apply, and exit.",
    )
    parser.add_argument(
        "--url",
        default="",
        help="With --print-configurations: reach the webhook by this URL, not by its Service.",
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Serve until a signal says stop."""
    if arguments.print_configurations:
        return _print(settings[WebhookSettings], arguments.url)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


def _print(settings: WebhookSettings, url: str) -> int:
    import yaml

    from gpufleet.webhook.configuration import configurations

    service = {"service": {"name": settings.service, "namespace": settings.namespace, "port": 443}}
    client = {"url": url} if url else service
    name = settings.configurations[0]
    print(yaml.safe_dump_all(configurations(client, name=name), sort_keys=False, width=110), end="")
    return 0


async def _serve(settings: Settings) -> int:
    from gpufleet.kubernetes import KubeClient
    from gpufleet.runtime.background import Background
    from gpufleet.webhook.certificate_store import FileKeys, SharedKeys, serving_context
    from gpufleet.webhook.pod_admission import PodRules
    from gpufleet.webhook.server import Webhook, serving
    from gpufleet.webhook.watched_claims import WatchedClaims

    own = settings[WebhookSettings]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as closing:
        client = await closing.enter_async_context(KubeClient.from_settings(settings[KubernetesSettings]))
        context = serving_context()
        by_file = own.certificate_file is not None or own.key_file is not None
        keys = FileKeys(own, context) if by_file else SharedKeys(client, own, context)
        await keys.look()
        claims = WatchedClaims(client)
        rules = PodRules(own.variables, frozenset(own.schedulers), own.device_requests == "refuse")
        background = await closing.enter_async_context(Background())
        background.start("claims", claims.watch.run)
        background.start("certificates", keys.run)
        webhook = Webhook(claims, rules)
        port = await closing.enter_async_context(
            serving(webhook, own.host, own.port, context, drain=own.drain)
        )
        print(f"gpufleet webhook serves on https://{own.host}:{port}", flush=True)
        await stop.wait()
    return 0
