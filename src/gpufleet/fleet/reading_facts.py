"""What readings say beside numbers: GPUs that nobody else described, and who uses them.

Exporters name a pod by namespace and name; the fleet knows its uid. A name that fits no pod is
left out: an exporter may lag behind, and a guess would be billed to somebody.
"""

from collections.abc import Callable, Container, Mapping

from gpufleet.fleet.fault_verdict import reason_out
from gpufleet.model.node import Gpu, Health
from gpufleet.model.reading import Holder, Readings

NodeGpus = Mapping[str, tuple[Gpu, ...]]
NodeHolders = Mapping[str, Mapping[int, tuple[str, ...]]]


def discovered(
    readings: Readings, node_name: Callable[[str], str], described: Container[str], before: NodeGpus
) -> NodeGpus:
    """The whole GPUs that have readings, by node, with the faults that their exporters report.

    Nodes whose agent has described them are left out. A fault that was there `before` keeps its time.
    """
    known = {(node, gpu.index): gpu for node, gpus in before.items() for gpu in gpus if gpu.health_reason}
    found: dict[str, dict[int, Gpu]] = {}
    for row, gpu in enumerate(readings.gpus):
        node = node_name(gpu.ref.node)
        if gpu.ref.partition or node in described:
            continue
        reason = reason_out(readings.faults.get(row, ()), gpu.vendor)
        old = known.get((node, gpu.ref.index)) if reason else None
        since = old.health_since if old is not None and old.health_reason == reason else readings.taken_at
        found.setdefault(node, {})[gpu.ref.index] = Gpu(
            index=gpu.ref.index,
            uuid=gpu.uuid,
            model=gpu.model,
            vendor=gpu.vendor.lower(),
            health=Health.UNHEALTHY if reason else Health.HEALTHY,
            health_reason=reason,
            health_since=since if reason else None,
        )
    return {node: tuple(gpus[index] for index in sorted(gpus)) for node, gpus in found.items()}


def holders(
    readings: Readings, node_name: Callable[[str], str], uid_of: Callable[[Holder, str], str | None]
) -> NodeHolders:
    """The pods that exporters name, by node and GPU."""
    found: dict[str, dict[int, tuple[str, ...]]] = {}
    for row, named in readings.holders.items():
        ref = readings.gpus[row].ref
        node = node_name(ref.node)
        uids = {uid for holder in named if (uid := uid_of(holder, node))}
        if uids:
            on_node = found.setdefault(node, {})
            on_node[ref.index] = tuple(sorted({*on_node.get(ref.index, ()), *uids}))
    return found
