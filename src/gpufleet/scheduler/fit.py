"""Say which nodes could take pods that do not exist, with the checks that the planner makes.

Counts free and healthy GPUs, reservations of other units, cordons, taints, CPU, memory and the number of pods.
Affinity, volumes and quotas of a real pod are not known here.
"""

from dataclasses import dataclass

from gpufleet.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, Resources, Toleration
from gpufleet.model.namespaces import Namespaces
from gpufleet.placement import Fits, Request
from gpufleet.placement.reasons import phrase
from gpufleet.placement.remedies import remedies
from gpufleet.scheduler.explain import name_pods
from gpufleet.scheduler.planning.refusals import with_all_nodes, with_reserved
from gpufleet.scheduler.state.ledger import Ledger
from gpufleet.scheduler.state.node_resources import Room


@dataclass(frozen=True)
class FittingNode:
    """A node that could take at least one of the pods, and its free GPUs."""

    name: str
    free: int


@dataclass(frozen=True)
class Fit:
    """How many of the pods fit now and where, or why not and what would help."""

    placed: int
    nodes: list[FittingNode]
    sentence: str
    reasons: dict[str, int]
    remedies: list[str]


def hypothetical_pod(cpu: str = "", memory: str = "", tolerated: tuple[str, ...] = ()) -> Pod:
    """Return a pod with these requests that tolerates taints with these keys; `*` tolerates all."""
    amounts = {name: amount for name, amount in (("cpu", cpu), ("memory", memory)) if amount}
    return Pod(
        metadata=ObjectMeta(uid="hypothetical"),
        spec=PodSpec(
            containers=(Container(resources=Resources(requests=amounts)),),
            tolerations=tuple(
                Toleration(key="" if key == "*" else key, operator="Exists") for key in tolerated
            ),
        ),
    )


def fit(ledger: Ledger, request: Request, pod: Pod, pods: int = 1, namespaces: Namespaces = None) -> Fit:
    """Return where `pods` pods with this request fit; remedies name only pods in `namespaces`."""
    room = Room(ledger.resources)
    admitted = ledger.eligible.of(pod)
    names = [name for name in admitted if not room.shortage(name, pod)]
    feasible = set(ledger.cluster.feasible(request)).intersection(names)
    found = [FittingNode(name, _free(ledger, name)) for name in feasible]
    found.sort(key=lambda node: (node.free, node.name))
    trial, placed = ledger.cluster.copy(), 0
    while placed < pods and isinstance(verdict := trial.take(request, feasible), Fits):
        room.take(verdict.node, pod)
        if room.shortage(verdict.node, pod):
            feasible.remove(verdict.node)
        placed += 1
    if placed == pods:
        return Fit(placed, found, "", {}, [])
    if placed:
        return Fit(placed, found, f"{placed} of {pods} pods fit now", {}, [])
    refused = ledger.cluster.place(request, names)
    assert not isinstance(refused, Fits)
    why = with_all_nodes(ledger, pod, with_reserved(ledger, refused))
    reasons = {phrase(reason, request, count): count for reason, count in why.counts.items()}
    ways = [
        name_pods(ledger, way.text, way.holders, namespaces)
        for way in remedies(ledger.cluster, request, names)
    ]
    return Fit(0, found, why.summary, reasons, ways)


def _free(ledger: Ledger, node: str) -> int:
    """Return the GPUs of a node that are healthy and wholly free."""
    usable = {gpu.id for gpu in ledger.cluster.nodes[node].gpus if gpu.usable}
    whole = ledger.cluster.free_milli(node).items()
    return sum(1 for gpu, milli in whole if gpu in usable and milli >= 1000)
