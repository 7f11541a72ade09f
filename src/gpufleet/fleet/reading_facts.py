"""What readings say beside numbers: GPUs that nobody else described, and who uses them.

Exporters name a pod by namespace and name; the fleet knows its uid. A name that fits no pod is
left out: an exporter may lag behind, and a guess would be billed to somebody.

At 100,000 GPUs each takes most of a second. So both work in steps of a few milliseconds: they are
generators that yield between two steps, in which requests are served, and return what they found.
"""

from collections.abc import Callable, Container, Generator, Mapping

from gpufleet.fleet.exporter_health import reason_out
from gpufleet.model.node import FleetGpu, Health
from gpufleet.model.reading import GpuUser, Readings

NodeGpus = Mapping[str, tuple[FleetGpu, ...]]
NodeHolders = Mapping[str, Mapping[int, tuple[str, ...]]]

ROWS_A_STEP = 256


def discovered(
    readings: Readings, node_name: Callable[[str], str], described: Container[str], before: NodeGpus
) -> Generator[None, None, NodeGpus]:
    """The whole GPUs that have readings, by node, with the faults that their exporters report.

    Nodes whose agent has described them are left out. A fault that was there `before` keeps its time.
    """
    known = {(node, gpu.index): gpu for node, gpus in before.items() for gpu in gpus if gpu.health_reason}
    found: dict[str, dict[int, FleetGpu]] = {}
    for row, gpu in enumerate(readings.gpus):
        if row % ROWS_A_STEP == 0:
            yield
        node = node_name(gpu.ref.node)
        if gpu.ref.partition or node in described:
            continue
        reason = reason_out(readings.faults.get(row, ()), gpu.vendor)
        old = known.get((node, gpu.ref.index)) if reason else None
        since = old.health_since if old is not None and old.health_reason == reason else readings.taken_at
        found.setdefault(node, {})[gpu.ref.index] = FleetGpu(
            index=gpu.ref.index,
            uuid=gpu.uuid,
            model=gpu.model,
            vendor=gpu.vendor.lower(),
            health=Health.UNHEALTHY if reason else Health.HEALTHY,
            health_reason=reason,
            health_since=since if reason else None,
        )
    ordered: dict[str, tuple[FleetGpu, ...]] = {}
    for number, (node, gpus) in enumerate(found.items()):
        if number % ROWS_A_STEP == 0:
            yield
        ordered[node] = tuple(gpus[index] for index in sorted(gpus))
    return ordered


def holders(
    readings: Readings, node_name: Callable[[str], str], uid_of: Callable[[GpuUser, str], str | None]
) -> Generator[None, None, NodeHolders]:
    """The pods that exporters name, by node and GPU."""
    found: dict[str, dict[int, tuple[str, ...]]] = {}
    before: tuple[str, tuple[GpuUser, ...]] = ("", ())
    uids: tuple[str, ...] = ()
    for number, (row, named) in enumerate(readings.holders.items()):
        if number % ROWS_A_STEP == 0:
            yield
        ref = readings.gpus[row].ref
        if before != (ref.node, named):  # a pod mostly holds several GPUs of its node, one after the other
            before = (ref.node, named)
            node = node_name(ref.node)
            uids = tuple(sorted({uid for holder in named if (uid := uid_of(holder, node))}))
            on_node = found.setdefault(node, {}) if uids else {}
        if uids:
            known = on_node.get(ref.index)
            on_node[ref.index] = tuple(sorted({*known, *uids})) if known else uids
    return found
