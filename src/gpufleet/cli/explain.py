"""Show why a pod or a claim is pending, and what would make it fit.

  gpufleet explain pod trainer-0 -n ml
  gpufleet explain claim training-gpus -n ml
  gpufleet explain claim training-gpus -o json

It reads nodes, GpuNodeStatuses, Leases, claims and pods from the Kubernetes API and places the claim as the
scheduler would; nothing is changed. The exit status is 1 if it is pending, else 0.
"""

import argparse
import asyncio

from gpufleet.runtime.settings import KubernetesSettings, Settings

GROUPS: tuple[type, ...] = (KubernetesSettings,)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the object to explain."""
    parser.add_argument("kind", choices=["pod", "claim"], help="What to explain.")
    parser.add_argument("name", metavar="NAME", help="Its name.")
    parser.add_argument("-n", "--namespace", default="default", help="Its namespace (default: default).")
    parser.add_argument(
        "-o", "--output", choices=["text", "json"], default="text", help="Output format (default: text)."
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    return asyncio.run(_explain(settings[KubernetesSettings], arguments))


async def _explain(settings: KubernetesSettings, arguments: argparse.Namespace) -> int:
    from gpufleet.kubernetes import KubeClient
    from gpufleet.server.claim_view import ClaimView, list_state

    async with KubeClient.from_settings(settings) as client:
        view = ClaimView(lambda: list_state(client, settings.lease_namespace))
        explain = view.explain_pod if arguments.kind == "pod" else view.explain
        found = await explain(arguments.namespace, arguments.name)
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
