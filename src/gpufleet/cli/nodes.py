"""List the nodes with GPUs, their findings and repairs; acknowledge, silence or resume a repair.

  gpufleet nodes                                 # every node with its open findings
  gpufleet nodes show gpu-node-1                 # findings, steps of the repair, earlier faults
  gpufleet nodes acknowledge gpu-node-1 --by me  # no more alerts about this fault
  gpufleet nodes silence gpu-node-1 --for 2h     # no alerts before then
  gpufleet nodes resume gpu-node-1               # test a node in phase Manual, and return it if it passes

It talks to the Kubernetes API with your own rights. `gpufleet nodes` exits with 1 if a GPU is unhealthy.
"""

import argparse
import asyncio
import getpass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gpufleet.runtime.settings import KubernetesSettings, Settings
from gpufleet.runtime.settings.parse import parse_duration
from gpufleet.terminal.width import terminal_width, wrapped

if TYPE_CHECKING:
    from gpufleet.kubernetes import KubeClient
    from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
    from gpufleet.kubernetes.crds.gpu_repair import GpuRepair

GROUPS: tuple[type, ...] = (KubernetesSettings,)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what to do, and the node."""
    parser.add_argument(
        "verb",
        nargs="?",
        choices=["list", "show", "acknowledge", "silence", "resume"],
        default="list",
        help="What to do (default: list).",
    )
    parser.add_argument("node", nargs="?", default="", metavar="NODE", help="Name of the node.")
    parser.add_argument("--by", default="", help="Who acknowledges (default: your user name).")
    parser.add_argument(
        "--for",
        dest="duration",
        type=parse_duration,
        default=3600.0,
        metavar="DURATION",
        help="How long to silence, such as 30m; 0 ends the silence (default: 1h).",
    )
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text", help="default: text")


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Do what the verb says."""
    return asyncio.run(_run(settings[KubernetesSettings], arguments))


async def _run(settings: KubernetesSettings, arguments: argparse.Namespace) -> int:
    from gpufleet.errors import InvalidRequest
    from gpufleet.kubernetes import KubeClient

    if arguments.verb != "list" and not arguments.node:
        raise InvalidRequest(f"which node? Use: gpufleet nodes {arguments.verb} NODE")
    async with KubeClient.from_settings(settings) as client:
        if arguments.verb in ("list", "show"):
            return await _print(client, arguments)
        return await _change(client, arguments)


async def _print(client: "KubeClient", arguments: argparse.Namespace) -> int:
    import msgspec

    from gpufleet.errors import NotFound
    from gpufleet.kubernetes import GPU_NODE_STATUSES, GPU_REPAIRS
    from gpufleet.kubernetes.client.errors import ObjectNotFound

    reports = (await client.list(GPU_NODE_STATUSES)).items
    try:
        repairs = {each.metadata.name: each for each in (await client.list(GPU_REPAIRS)).items}
    except ObjectNotFound:
        repairs = {}
    reports = [each for each in reports if arguments.node in ("", each.metadata.name)]
    if not reports and arguments.node:
        raise NotFound(f"no agent reports the GPUs of node {arguments.node}")
    if arguments.output == "json":
        rows = [
            {
                "node": each.metadata.name,
                "findings": each.status.findings,
                "repair": repairs[each.metadata.name].status if each.metadata.name in repairs else None,
            }
            for each in reports
        ]
        print(msgspec.json.format(msgspec.json.encode(rows)).decode())
    else:
        width = terminal_width()
        for line in lines(reports, repairs, details=arguments.verb == "show"):
            print(wrapped(line, width))
    return int(any(each.status.unhealthy for each in reports))


def lines(
    reports: "list[GpuNodeStatus]", repairs: "dict[str, GpuRepair]", details: bool = False
) -> list[str]:
    """Return one line per node and one per finding; with `details` also the steps and earlier faults."""
    width = max((4, *(len(each.metadata.name) for each in reports)))
    found = [f"{'NODE':<{width}}  GPUS  UNHEALTHY  PHASE      MESSAGE"]
    for report in sorted(reports, key=lambda each: each.metadata.name):
        name, status = report.metadata.name, report.status
        repair = repairs.get(name)
        phase = repair.status.phase if repair else "Healthy"
        message = repair.status.message if repair and phase != "Healthy" else ""
        found.append(
            f"{name:<{width}}  {status.total:>4}  {status.unhealthy:>9}  {phase:<9}  {message}".rstrip()
        )
        for each in status.findings:
            gpu = f"GPU {each.gpu}" if each.gpu is not None else each.scope.lower()
            since = f" since {each.since:%Y-%m-%d %H:%M}" if each.since else ""
            found.append(f"  {each.severity:<9} {gpu:<6} {each.signal}: {each.message}{since}")
        if details and status.kernel_log:
            found.append(f"  the kernel log is not read: {status.kernel_log}")
        if details and repair is not None:
            found += [f"  {step}" for step in repair.status.steps]
            found += [
                f"  earlier: {each.opened:%Y-%m-%d %H:%M} to {each.closed:%Y-%m-%d %H:%M} {each.cause}: {each.message}"
                for each in repair.status.history
            ]
    return found


async def _change(client: "KubeClient", arguments: argparse.Namespace) -> int:
    from gpufleet.errors import NotFound
    from gpufleet.kubernetes import GPU_REPAIRS, NODES
    from gpufleet.kubernetes.client.errors import ObjectNotFound
    from gpufleet.kubernetes.repair_requests import acknowledged, change_repair, resumed, silenced

    now, node = datetime.now(UTC), arguments.node
    try:
        uid = (await client.get(NODES, node)).metadata.uid
    except ObjectNotFound as error:
        raise NotFound(f"there is no node {node}") from error
    try:
        episode = (await client.get(GPU_REPAIRS, node)).status.episode
    except ObjectNotFound:
        episode = 0
    match arguments.verb:
        case "acknowledge":
            who = arguments.by or getpass.getuser()
            spec, done = acknowledged(who, episode, now), f"acknowledged by {who}"
        case "silence" if not arguments.duration:
            spec, done = silenced(0, now), "no longer silenced"
        case "silence":
            until = now + timedelta(seconds=arguments.duration)
            spec = silenced(arguments.duration, now)
            done = f"silenced until {until:%Y-%m-%d %H:%M} UTC"
        case _:
            spec, done = resumed(now), "resumed: it is tested and returned if it passes"
    await change_repair(client, node, uid, spec)
    print(f"{node} {done}")
    return 0
