"""Show why a pod or a claim is pending, and what would make it fit.

  gpufleet explain pod trainer-0 -n ml
  gpufleet explain claim training-gpus -n ml --server https://fleet.example.com
  gpufleet explain claim training-gpus -o json

With --server or GPUFLEET_SERVER, or without a kubeconfig, it asks a server. Otherwise it reads nodes,
GpuNodeStatuses, Leases, GpuQueues, claims and pods from the Kubernetes API and places the claim as the scheduler
would. Nothing is changed. The exit status is 1 if it is pending, else 0.
"""

import argparse
import asyncio
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypedDict

from gpufleet.errors import GpufleetError
from gpufleet.runtime.settings import KubernetesSettings, Settings
from gpufleet.terminal.flags import add_connection_flags
from gpufleet.terminal.width import terminal_width, wrapped

if TYPE_CHECKING:
    from gpufleet.client.types import StartEstimate, WhyWaiting
    from gpufleet.estimates.starts import Estimate
    from gpufleet.kubernetes import KubeClient
    from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
    from gpufleet.scheduler.explain import Explanation
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
    add_connection_flags(parser, kubeconfig=False)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the explanation."""
    own = settings[KubernetesSettings]
    if _asks_server(own, arguments, os.environ):
        arguments.kubeconfig, arguments.context = own.kubeconfig, own.context
        found: WhyWaiting | Explanation = (answer := _ask(arguments))
        start = from_server(answer.estimate)
    else:
        found, estimate = asyncio.run(_explain(own, arguments))
        start = _from_now(estimate)
    if arguments.output == "json":
        import msgspec

        print(
            msgspec.json.format(
                msgspec.json.encode({**msgspec.to_builtins(found), "estimate": start})
            ).decode()
        )
        return int(found.waiting)
    lines = [f"{arguments.kind} {arguments.namespace}/{arguments.name}: {found.sentence}"]
    if "nodes fit:" not in found.sentence:  # else it has the reasons of the nodes
        for reason, count in sorted(found.reasons.items(), key=lambda pair: -pair[1]):
            lines.append(f"  {count} node{'s' if count != 1 else ''} {reason}")
    if start is not None:
        lines.append(start_sentence(start))
    if found.remedies:
        lines += ["What would help:", *(f"  - {remedy}" for remedy in found.remedies)]
    width = terminal_width()
    for line in lines:
        print(wrapped(line, width))
    return int(found.waiting)


class Start(TypedDict):
    """When a unit is expected to start, as the API describes it; None where that is unknown."""

    position: int
    waitsFor: str
    expectedStart: datetime | None
    earliestStart: datetime | None
    latestStart: datetime | None


def from_server(estimate: "StartEstimate | None") -> Start | None:
    """Return an estimate of a server."""
    if estimate is None:
        return None
    expected, earliest, latest = (
        datetime.fromisoformat(text) if text else None
        for text in (estimate.expected_start, estimate.earliest_start, estimate.latest_start)
    )
    return Start(
        position=estimate.position,
        waitsFor=estimate.waits_for,
        expectedStart=expected,
        earliestStart=earliest,
        latestStart=latest,
    )


def _from_now(estimate: "Estimate | None") -> Start | None:
    if estimate is None:
        return None
    now = datetime.now(UTC)
    expected, earliest, latest = (
        None if seconds is None else now + timedelta(seconds=seconds)
        for seconds in (estimate.expected, estimate.earliest, estimate.latest)
    )
    return Start(
        position=estimate.position,
        waitsFor=estimate.waits_for,
        expectedStart=expected,
        earliestStart=earliest,
        latestStart=latest,
    )


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


async def _explain(
    settings: KubernetesSettings, arguments: argparse.Namespace
) -> "tuple[Explanation, Estimate | None]":
    from gpufleet.kubernetes import KubeClient
    from gpufleet.server.claim_view import ClaimView, list_state

    async with KubeClient.from_settings(settings) as client:
        view = ClaimView(lambda: list_state(client, settings.lease_namespace))
        explain = view.explain_pod if arguments.kind == "pod" else view.explain
        found = await explain(arguments.namespace, arguments.name)
        if not found.waiting:
            return found, None
        ledger, queues = await view.ledger(), await _queues(client)
        return found, _estimate(ledger, queues, arguments.kind, arguments.namespace, arguments.name)


async def _queues(client: "KubeClient") -> "Sequence[GpuQueue]":
    """Return all GpuQueues; none if the cluster has none, or does not let the user list them."""
    from gpufleet.kubernetes import GPU_QUEUES
    from gpufleet.kubernetes.client.errors import KubernetesRefused

    try:
        return (await client.list(GPU_QUEUES)).items
    except KubernetesRefused:
        return ()


def _estimate(
    ledger: "Ledger", queues: "Sequence[GpuQueue]", kind: str, namespace: str, name: str
) -> "Estimate | None":
    """Estimate the start from the pods that exist; a server knows more runs (`/api/queue`)."""
    from gpufleet.estimates.starts import StartEstimates
    from gpufleet.scheduler.start_state import seen_runs, start_state

    now = datetime.now(UTC)
    state, estimates = start_state(ledger, now, queues), StartEstimates()
    for job, seconds in seen_runs(ledger, now):
        estimates.run_times.observe(job, seconds)
    keys = state.unit_of_pod_named if kind == "pod" else state.unit_of_claim
    key = keys.get((namespace, name))
    if key is None:
        return None
    estimates.refresh(state.fleet, now.timestamp(), probing=False)
    return estimates.of(key, now.timestamp())


def start_sentence(start: Start) -> str:
    """Return position, what it waits for and when it is expected to start."""
    from gpufleet.terminal.columns import age

    now = datetime.now(UTC)
    position, reason = f"Position {start['position']} in the queue", start["waitsFor"]
    times = start["expectedStart"], start["earliestStart"], start["latestStart"]
    expected, earliest, latest = (
        None if time is None else age(max(0.0, (time - now).total_seconds())) for time in times
    )
    if expected is None or earliest is None or latest is None:
        return f"{position}. When it starts is not known: {reason}."
    return f"{position}; waits for {reason}.\nExpected to start in {expected} (90%: {earliest} to {latest})."
