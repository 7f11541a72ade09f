"""Show why a pod or a claim is pending, and what would make it fit.

  gpufleet explain pod trainer-0 -n ml
  gpufleet explain claim training-gpus -n ml --server https://fleet.example.com
  gpufleet explain claim training-gpus -o json

With --server or GPUFLEET_SERVER, or without a kubeconfig, it asks a server. Otherwise it reads nodes,
GpuNodeStatuses, Leases, claims and pods from the Kubernetes API and places the claim as the scheduler would. Nothing
is changed. The exit status is 1 if it is pending, else 0.
"""

import argparse
import asyncio
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpufleet.errors import GpufleetError
from gpufleet.runtime.settings import KubernetesSettings, Settings
from gpufleet.terminal.flags import add_connection_flags

if TYPE_CHECKING:
    from gpufleet.client.types import WhyWaiting
    from gpufleet.scheduler.explain import Explanation

GROUPS: tuple[type, ...] = (KubernetesSettings,)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the object to explain."""
    parser.add_argument("kind", choices=["pod", "claim"], help="What to explain.")
    parser.add_argument("name", metavar="NAME", help="Its name.")
    parser.add_argument("-n", "--namespace", default="default", help="Its namespace (default: default).")
    parser.add_argument(
        "-o", "--output", choices=["text", "json"], default="text", help="Output format (default: text)."
    )
    add_connection_flags(parser, kubeconfig=False)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    own = settings[KubernetesSettings]
    if _asks_server(own, arguments, os.environ):
        arguments.kubeconfig, arguments.context = own.kubeconfig, own.context
        found: WhyWaiting | Explanation = _ask(arguments)
    else:
        found = asyncio.run(_explain(own, arguments))
    if arguments.output == "json":
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(found)).decode())
        return int(found.waiting)
    print(f"{arguments.kind} {arguments.namespace}/{arguments.name}: {found.sentence}")
    for reason, count in sorted(found.reasons.items(), key=lambda pair: -pair[1]):
        print(f"  {count} node{'s' if count != 1 else ''} {reason}")
    if found.remedies:
        print("What would help:")
        for remedy in found.remedies:
            print(f"  - {remedy}")
    return int(found.waiting)


def _asks_server(
    settings: KubernetesSettings, arguments: argparse.Namespace, environ: Mapping[str, str]
) -> bool:
    """Return whether to ask a server: one is named, or there is no kubeconfig."""
    from gpufleet.terminal.kubectl import default_kubeconfig

    if arguments.server:
        return True
    if settings.kubeconfig is not None or settings.context:
        return bool(arguments.service)
    named = bool(arguments.service or environ.get("GPUFLEET_SERVER"))
    return named or not (default_kubeconfig(environ) or "KUBERNETES_SERVICE_HOST" in environ)


def _ask(arguments: argparse.Namespace) -> "WhyWaiting":
    try:
        from gpufleet.terminal.connection import open_client
    except ModuleNotFoundError as error:
        raise GpufleetError(f"to ask a server, pip install 'gpufleet[client]' ({error})") from error
    with open_client(arguments) as client:
        explain = client.explain_pod if arguments.kind == "pod" else client.explain_claim
        return explain(arguments.namespace, arguments.name)


async def _explain(settings: KubernetesSettings, arguments: argparse.Namespace) -> "Explanation":
    from gpufleet.kubernetes import KubeClient
    from gpufleet.server.claim_view import ClaimView, list_state

    async with KubeClient.from_settings(settings) as client:
        view = ClaimView(lambda: list_state(client, settings.lease_namespace))
        explain = view.explain_pod if arguments.kind == "pod" else view.explain
        return await explain(arguments.namespace, arguments.name)
