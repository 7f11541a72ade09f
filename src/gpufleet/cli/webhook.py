"""Run the admission webhook: give pods with a claim their GPU variables, validate claims.

It serves HTTPS with its own certificate, which all replicas share in a Secret, and keeps the caBundle of
its webhook configurations up to date. With --certificate-file and --key-file it serves those instead; then
the caBundle is up to the tool that made them, such as cert-manager.

  gpufleet webhook --host 0.0.0.0 --namespace gpufleet
  gpufleet webhook --print-configurations | kubectl apply -f -    # register it with the API server
"""

import argparse

from gpufleet.runtime.settings import KubernetesSettings, Settings, WebhookSettings

GROUPS: tuple[type, ...] = (WebhookSettings, KubernetesSettings)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that print manifests."""
    parser.add_argument(
        "--print-configurations",
        action="store_true",
        help="Print the webhook configurations and admission policies to apply, and exit.",
    )
    parser.add_argument(
        "--url",
        default="",
        help="With --print-configurations: URL of the webhook, instead of its Service.",
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Serve until a signal arrives."""
    if arguments.print_configurations:
        return _print_configurations(settings[WebhookSettings], arguments.url)
    import uvloop

    from gpufleet.runtime.process import run_until_stopped
    from gpufleet.webhook.process import run_webhook

    return run_until_stopped(
        lambda _stopper: run_webhook(
            settings, lambda url: print(f"gpufleet webhook serves on {url}", flush=True)
        ),
        uvloop.new_event_loop,
    )


def _print_configurations(settings: WebhookSettings, url: str) -> int:
    import yaml

    from gpufleet.webhook.configuration import configurations, policies

    service = {"service": {"name": settings.service, "namespace": settings.namespace, "port": 443}}
    client = {"url": url} if url else service
    name = settings.configurations[0]
    objects = [*configurations(client, name=name), *policies(name=name)]
    print(yaml.safe_dump_all(objects, sort_keys=False, width=110), end="")
    return 0
