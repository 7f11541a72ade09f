"""Extract from readings what is not a number: GPUs that only exporters know, and who uses them.

Exporters name a pod by namespace and name; the fleet knows it by uid. A name that fits no pod is
left out: the exporter may lag behind, and a wrong guess would be billed.

At 100,000 GPUs each function takes most of a second. So both are generators that yield between
steps of a few milliseconds, in which requests are served, and return what they found.
"""

from collections.abc import Callable, Container, Generator, Mapping

from gpufleet.fleet.exporter_health import unusable_reason
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.node import FleetGpu, Health
from gpufleet.model.reading import GpuUser, Readings

NodeGpus = Mapping[str, tuple[FleetGpu, ...]]
NodeHolders = Mapping[str, Mapping[int, tuple[str, ...]]]

ROWS_PER_STEP = 256


def discovered_gpus(
    readings: Readings, described: Container[str], before: NodeGpus
) -> Generator[None, None, NodeGpus]:
    """Return the whole GPUs that have readings, by node, with the faults that exporters report.

    Nodes in `described` are left out: their agent reports the GPUs itself. A fault that was already
    there `before` keeps its time.
    """
    known = {(node, gpu.index): gpu for node, gpus in before.items() for gpu in gpus if gpu.health_reason}
    found: dict[str, dict[int, FleetGpu]] = {}
    for row, gpu in enumerate(readings.gpus):
        if row % ROWS_PER_STEP == 0:
            yield
        node = gpu.ref.node
        if gpu.ref.partition or node in described:
            continue
        reason = unusable_reason(readings.faults.get(row, ()), gpu.vendor)
        old = known.get((node, gpu.ref.index)) if reason else None
        since = old.health_since if old is not None and old.health_reason == reason else readings.taken_at
        found.setdefault(node, {})[gpu.ref.index] = FleetGpu(
            index=gpu.ref.index,
            uuid=gpu.uuid,
            model=canonical_model(gpu.model),
            vendor=gpu.vendor.lower(),
            health=Health.UNHEALTHY if reason else Health.HEALTHY,
            health_reason=reason,
            health_since=since if reason else None,
        )
    ordered: dict[str, tuple[FleetGpu, ...]] = {}
    for number, (node, gpus) in enumerate(found.items()):
        if number % ROWS_PER_STEP == 0:
            yield
        ordered[node] = tuple(gpus[index] for index in sorted(gpus))
    return ordered


def exporter_holders(
    readings: Readings, uid_of: Callable[[GpuUser, str], str | None]
) -> Generator[None, None, NodeHolders]:
    """Return the uids of the pods that exporters name, by node and GPU."""
    found: dict[str, dict[int, tuple[str, ...]]] = {}
    before: tuple[str, tuple[GpuUser, ...]] = ("", ())
    uids: tuple[str, ...] = ()
    for number, (row, users) in enumerate(readings.holders.items()):
        if number % ROWS_PER_STEP == 0:
            yield
        ref = readings.gpus[row].ref
        if before != (ref.node, users):  # a pod mostly holds several consecutive GPUs of its node
            before = (ref.node, users)
            uids = tuple(sorted({uid for user in users if (uid := uid_of(user, ref.node))}))
            on_node = found.setdefault(ref.node, {}) if uids else {}
        if uids:
            known = on_node.get(ref.index)
            on_node[ref.index] = tuple(sorted({*known, *uids})) if known else uids
    return found
