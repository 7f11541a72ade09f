"""What readings say beside numbers: GPUs that nobody else described, and who uses them.

Exporters name a pod by namespace and name; the fleet knows its uid. A name that fits no pod is
left out: an exporter may lag behind, and a guess would be billed to somebody.
"""

from collections.abc import Callable, Container, Mapping

from gpufleet.model.node import Gpu
from gpufleet.model.reading import Holder, Readings

NodeGpus = Mapping[str, tuple[Gpu, ...]]
NodeHolders = Mapping[str, Mapping[int, tuple[str, ...]]]


def discovered(readings: Readings, node_name: Callable[[str], str], described: Container[str]) -> NodeGpus:
    """The whole GPUs that have readings, by node; nodes whose agent has described them are left out."""
    found: dict[str, dict[int, Gpu]] = {}
    for gpu in readings.gpus:
        node = node_name(gpu.ref.node)
        if not gpu.ref.partition and node not in described:
            found.setdefault(node, {})[gpu.ref.index] = Gpu(
                index=gpu.ref.index, uuid=gpu.uuid, model=gpu.model, vendor=gpu.vendor.lower()
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
