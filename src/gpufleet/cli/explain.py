"""Show why a pod or a claim is pending, and what would make it fit.

  gpufleet explain pod trainer-0 -n ml
  gpufleet explain claim training-gpus -n ml
  gpufleet explain claim training-gpus -o json

It reads nodes, GpuNodeStatuses, Leases, claims and pods from the Kubernetes API and places the claim as the
scheduler would; nothing is changed. The exit status is 1 if it is pending, else 0.
"""

import argparse
import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from gpufleet.runtime.settings import KubernetesSettings, Settings

if TYPE_CHECKING:
    from gpufleet.estimates.starts import Estimate
    from gpufleet.scheduler.state import Ledger

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
        starts = None
        if found.waiting:
            starts = _estimate(await view.ledger(), arguments.kind, arguments.namespace, arguments.name)
    if arguments.output == "json":
        import msgspec

        shown = {**msgspec.to_builtins(found), "estimate": msgspec.to_builtins(starts) if starts else None}
        print(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return int(found.waiting)
    print(f"{arguments.kind} {arguments.namespace}/{arguments.name}: {found.sentence}")
    for reason, count in sorted(found.reasons.items(), key=lambda pair: -pair[1]):
        print(f"  {count} node{'s' if count != 1 else ''} {reason}")
    if starts is not None:
        print(_sentence(starts))
    if found.remedies:
        print("What would help:")
        for remedy in found.remedies:
            print(f"  - {remedy}")
    return int(found.waiting)


def _estimate(ledger: "Ledger", kind: str, namespace: str, name: str) -> "Estimate | None":
    """Estimate the start from the pods that exist; a server knows more runs (`/api/queue`)."""
    from gpufleet.estimates.starts import StartEstimates
    from gpufleet.scheduler.start_state import seen_runs, start_state

    now = datetime.now(UTC)
    state, estimates = start_state(ledger, now), StartEstimates()
    for job, seconds in seen_runs(ledger, now):
        estimates.run_times.observe(job, seconds)
    uids = [
        uid
        for uid, pod in ledger.pods.items()
        if (pod.metadata.namespace, pod.metadata.name) == (namespace, name)
    ]
    by_pod = state.unit_of_pod.get(uids[0]) if kind == "pod" and uids else None
    key = by_pod or state.unit_of_claim.get((namespace, name))
    if key is None:
        return None
    estimates.refresh(state.fleet, now.timestamp(), probing=False)
    return estimates.of(key, now.timestamp())


def _sentence(estimate: "Estimate") -> str:
    from gpufleet.simulation.text_report import duration

    head = f"Position {estimate.position} in the queue; waits for {estimate.waits_for}."
    if estimate.expected is None or estimate.earliest is None or estimate.latest is None:
        return f"{head} When it starts is not known."
    return (
        f"{head}\nExpected to start in {duration(estimate.expected)} "
        f"(90%: {duration(estimate.earliest)} to {duration(estimate.latest)})."
    )
