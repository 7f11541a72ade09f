"""Place the members of a gang together, or say why they don't fit.

A gang starts with its minimum of members; if more exist and fit, they start with it. Every member is
placed only on nodes that admit it and have the CPU, memory and other resources that it requests.
Members behind scheduling gates of others are not placed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpufleet.kubernetes.annotations import GANG_SIZE
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import GangFits, GangRefused, Inventory, Refused, Request, place_gang
from gpufleet.scheduler.planning.queue import foreign_gates
from gpufleet.scheduler.state import Ledger
from gpufleet.scheduler.state.allocations import has_started
from gpufleet.scheduler.state.gang_identity import Gang
from gpufleet.scheduler.state.holders import holder_key
from gpufleet.scheduler.state.node_resources import Room


@dataclass(frozen=True)
class Level:
    """Node labels of which all members of a gang get the same value, the narrowest first."""

    labels: tuple[str, ...]
    required: bool

    def within(self, ledger: Ledger, nodes: frozenset[str]) -> list[frozenset[str]]:
        """Return the groups of these nodes that may take the whole gang, the largest first."""
        if not self.required:
            return [nodes]
        groups: dict[str, set[str]] = {}
        for name in nodes:
            known = ledger.nodes.get(name)
            if known is not None and (value := known.metadata.labels.get(self.labels[-1])) is not None:
                groups.setdefault(value, set()).add(name)
        return [
            frozenset(group) for _, group in sorted(groups.items(), key=lambda each: (-len(each[1]), each[0]))
        ]


def level_of(claim: GpuClaim | None, levels: Sequence[str]) -> Level | str | None:
    """Return the level that a claim asks for, None if it asks for none, or why it can't have it."""
    topology = claim.spec.topology if claim is not None else None
    if topology is None or not topology.level:
        return None
    if topology.level not in levels:
        return f"{topology.level} is none of the topology levels ({', '.join(levels) or 'none are set'})"
    narrower = tuple(reversed(levels[levels.index(topology.level) :]))
    return Level(narrower, topology.level_mode == "Required")


@dataclass(frozen=True)
class Members:
    """The members of a gang: those that have started and those to place, of which `least` must start."""

    started: tuple[Pod, ...] = ()
    waiting: tuple[Pod, ...] = ()
    least: int = 0
    timeout: float = 0.0
    problem: str = ""
    """Why the gang can't be placed at all."""

    @property
    def runs(self) -> bool:
        """Return whether enough members have started, so that others follow one by one."""
        return not self.problem and self.least <= 0


def members_of(ledger: Ledger, gang: Gang, schedulers: Collection[str]) -> Members:
    """Return the members to place; `schedulers` are the names of the schedulers that ask here."""
    needs, members = ledger.gangs.requirements(gang), ledger.gangs.members(gang)
    started = tuple(pod for pod in members if has_started(ledger, pod))
    rest = tuple(pod for pod in members if pod not in started)
    if needs is None:
        problem = f"gang {gang.name}: no PodGroup exists and no claim has the annotation {GANG_SIZE}"
        return Members(started, rest, problem=problem)
    least = needs.min_members - len(started)
    if len(members) < needs.min_members:
        problem = f"gang {gang.name}: {len(members)} of {needs.min_members} members exist"
        return Members(started, rest, least, problem=problem)
    foreign = next(
        (pod for pod in rest if pod.spec.scheduler_name not in schedulers and not is_delivered_by_claim(pod)),
        None,
    )
    if foreign is not None and least > 0:
        problem = f"gang {gang.name}: {other_scheduler(foreign)}"
        return Members(started, rest, least, problem=problem)
    unready = [pod for pod in rest if is_delivered_by_claim(pod) and not _has_free_claim(ledger, pod)]
    if unready and least > 0:
        problem = f"gang {gang.name}: {len(unready)} of {len(members)} members wait for their ResourceClaim"
        return Members(started, rest, least, problem=problem)
    free = tuple(pod for pod in rest if not foreign_gates(pod) and pod not in unready)
    if len(free) < least:
        gates = sorted({gate for pod in rest for gate in foreign_gates(pod)})
        problem = (
            f"gang {gang.name}: {len(rest) - len(free)} of {len(members)} members wait for "
            f"scheduling gate {', '.join(gates)}"
        )
        return Members(started, rest, least, problem=problem)
    most = None if needs.max_members is None else max(needs.max_members - len(started), 0)
    return Members(started, free[:most], least, needs.timeout)


def _has_free_claim(ledger: Ledger, pod: Pod) -> bool:
    """Return whether the pod's ResourceClaim exists and is not being written."""
    hold = ledger.holds.get(pod.metadata.uid)
    claim = ledger.resource_claims.of_pod(pod)
    return claim is not None and claim.status.allocation is None and not (hold is not None and hold.pinned)


def other_scheduler(pod: Pod) -> str:
    """Return the sentence about a pod that names a claim but another scheduler."""
    return (
        f"pod {pod.metadata.name} has schedulerName {pod.spec.scheduler_name or 'default-scheduler'}, "
        "which does not allocate the GPUs of claims"
    )


def place_members(
    ledger: Ledger,
    pods: Sequence[Pod],
    requests: Sequence[Request],
    nodes: Sequence[frozenset[str]],
    level: Level | None = None,
) -> GangFits | GangRefused:
    """Place these members together on nodes with room for them; nothing is allocated."""
    room = Room(ledger.resources, own_places(ledger, pods))
    open_nodes: dict[object, frozenset[str]] = {}
    eligible = []
    for pod, admitted in zip(pods, nodes, strict=True):
        key = (admitted, tuple(sorted(room.request(pod).items())))
        if key not in open_nodes:
            open_nodes[key] = frozenset(node for node in admitted if not room.shortage(node, pod))
        eligible.append(open_nodes[key])
    if not own_places(ledger, pods):
        # Most gangs that wait don't even fit one member: no copy of the inventory is needed to see that.
        for at, (request, where) in enumerate(zip(requests, eligible, strict=True)):
            if (request, where) not in zip(requests[:at], eligible[:at], strict=True) and isinstance(
                why := ledger.cluster.place(request, where), Refused
            ):
                return GangRefused(len(pods), 0, why, len(ledger.cluster.nodes) - len(why.names), at)
    trial, members = without_holds(ledger, pods), _MemberRoom(room, pods)
    for label in level.labels if level is not None else ():
        found = place_gang(trial, requests, label, eligible, members, label_required=True)
        if isinstance(found, GangFits):
            return found
    if level is not None and level.required:
        return found
    return place_gang(trial, requests, level.labels[-1] if level is not None else None, eligible, members)


def without_holds(ledger: Ledger, pods: Sequence[Pod]) -> Inventory:
    """Return a copy of the inventory without what these pods have or what is held for them."""
    trial = ledger.cluster.copy()
    for node, pod in own_places(ledger, pods):
        trial.free(holder_key(pod.metadata.uid, node))
    return trial


def own_places(ledger: Ledger, pods: Sequence[Pod]) -> list[tuple[str, Pod]]:
    """Return the nodes on which these unbound pods have GPUs, or on which GPUs are held for them."""
    found = []
    for pod in pods:
        nodes = set(ledger.held_by(pod.metadata.uid))
        if (hold := ledger.holds.get(pod.metadata.uid)) is not None:
            nodes.add(hold.fits.node)
        found += [(node, pod) for node in nodes]
    return found


class _MemberRoom:
    """The free resources of nodes, for members by their number."""

    def __init__(self, room: Room, pods: Sequence[Pod]) -> None:
        self._room = room
        self._pods = pods

    def has(self, node: str, member: int) -> bool:
        """Return whether the node has room for the member."""
        return not self._room.shortage(node, self._pods[member])

    def take(self, node: str, member: int) -> None:
        """Count the member as placed on the node."""
        self._room.take(node, self._pods[member])

    def copy(self) -> "_MemberRoom":
        """Return an independent copy."""
        return _MemberRoom(self._room.copy(), self._pods)
