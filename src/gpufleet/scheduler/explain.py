"""Explain why a claim or pod is pending, and what would make it fit."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_SIZE
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.model.namespaces import Namespaces
from gpufleet.placement.gang import GangFits, GangRefused
from gpufleet.placement.reasons import phrase
from gpufleet.placement.remedies import relaxed, remedies
from gpufleet.placement.request import Request
from gpufleet.placement.verdict import Fits
from gpufleet.scheduler.planning.gang_planner import Level, level_of, members_of, place_members
from gpufleet.scheduler.planning.plan import NOT_TRIED, PENDING
from gpufleet.scheduler.planning.refusals import gang_sentence, with_all_nodes
from gpufleet.scheduler.state.claim_requests import admitted_otherwise, request_of
from gpufleet.scheduler.state.gang_identity import Gang
from gpufleet.scheduler.state.holders import uid_of
from gpufleet.scheduler.state.ledger import Ledger
from gpufleet.scheduler.state.node_resources import Room

_QUEUE = re.compile(
    r"queue (\S+) has (?:reached|used up)"
    r"|the budget of queue (\S+) has \S+ of"
    r"|\S+ GPUs? are more than the limit of queue ([^\s,]+)"
)
"""Begins the reason of a unit whose GpuQueue may not have more GPUs."""
_NODES = re.compile(r"(\d+) ([^,;]+)")
"""A number of nodes and their reason, in the sentence of a refusal."""


@dataclass(frozen=True)
class Explanation:
    """A sentence, the number of nodes by reason, and what would make the claim fit."""

    waiting: bool
    sentence: str
    reasons: dict[str, int]
    remedies: tuple[str, ...] = ()


def explain(
    ledger: Ledger, namespace: str, claim: str, pod: Pod | None = None, namespaces: Namespaces = None
) -> Explanation:
    """Explain a claim, or one pod that uses it; name only pods in `namespaces`."""
    found = ledger.claims.get((namespace, claim))
    if found is None:
        return Explanation(
            True,
            f"GpuClaim {namespace}/{claim} does not exist",
            {},
            (f"create GpuClaim {claim} in {namespace}",),
        )
    pods = [pod] if pod is not None else ledger.pods_of(namespace, claim)
    pending = [each for each in pods if not each.spec.node_name and not each.finished]
    if pods and not pending:
        return _allocated(pods)
    return _pending(ledger, found, pending, namespaces)


def explain_pod(ledger: Ledger, pod: Pod, namespaces: Namespaces = None) -> Explanation:
    """Explain a pod by its claim; name only pods in `namespaces`."""
    claim = pod.metadata.annotations.get(CLAIM)
    if not claim:
        return Explanation(
            False,
            f"pod {pod.metadata.namespace}/{pod.metadata.name} uses no GpuClaim, so gpufleet allocates no GPUs to it",
            {},
            (f"set its annotation {CLAIM}",),
        )
    return explain(ledger, pod.metadata.namespace, claim, pod, namespaces)


def _allocated(pods: list[Pod]) -> Explanation:
    allocated = [
        pod.metadata.annotations.get(ALLOCATED) or pod.spec.node_name for pod in pods if not pod.finished
    ]
    if allocated:
        return Explanation(
            False, f"allocated: {', '.join(allocated[:8])}{' …' if len(allocated) > 8 else ''}", {}
        )
    ended = "its only pod has" if len(pods) == 1 else f"all its {len(pods)} pods have"
    return Explanation(False, f"{ended} finished", {})


def _pending(ledger: Ledger, claim: GpuClaim, pods: list[Pod], namespaces: Namespaces) -> Explanation:
    try:
        request = request_of(claim)
    except InvalidRequest as error:
        return Explanation(True, f"the claim is invalid: {error}", {}, ("correct the claim",))
    if difference := next(filter(None, (admitted_otherwise(pod, claim) for pod in pods)), ""):
        return Explanation(True, difference, {}, ("delete the pod and create it again",))
    gang = ledger.gangs.of(pods[0]) if pods else None
    found = _gang(ledger, gang) if gang else _single(ledger, request, pods[0] if pods else None, namespaces)
    # What the scheduler has decided is in the claim's status: it also knows the queue.
    decided = claim.status.message.partition(PENDING)[2]
    if found.waiting and decided not in ("", NOT_TRIED):
        queue = _QUEUE.match(decided)
        ways = (f"see kubectl describe gpuqueue {queue[queue.lastindex or 1]}",) if queue else found.remedies
        reasons = _reasons_in(decided) if decided != found.sentence else found.reasons
        return replace(found, sentence=decided, reasons=reasons or found.reasons, remedies=ways)
    return found


def _reasons_in(sentence: str) -> dict[str, int]:
    """Return the nodes by reason that a sentence names: an older decision may differ from what is true now."""
    _, _, reasons = sentence.partition(" nodes fit: ")
    return {reason: int(count) for count, reason in _NODES.findall(reasons.partition(";")[0])}


def _single(ledger: Ledger, request: Request, pod: Pod | None, namespaces: Namespaces) -> Explanation:
    room = Room(ledger.resources)
    nodes = None
    if pod is not None:
        nodes = [name for name in _admitted(ledger, pod) if not room.shortage(name, pod)]
    with ledger.excluding(pod.metadata.uid if pod is not None else ""):
        verdict = ledger.cluster.place(request, nodes)
        ways = remedies(ledger.cluster, request, nodes) if not isinstance(verdict, Fits) else []
    if isinstance(verdict, Fits) and pod is None:
        return Explanation(
            False, f"no pod uses the claim yet; it fits on GPUs {_ids(verdict)} of {verdict.node}", {}
        )
    if isinstance(verdict, Fits):
        return Explanation(
            True,
            f"GPUs {_ids(verdict)} of {verdict.node} are free: either the scheduler has not tried the pod yet, "
            "or kube-scheduler excludes the node",
            {},
            ("see the events of the pod (kubectl describe pod)",),
        )
    if pod is not None:
        verdict = with_all_nodes(ledger, pod, verdict)
    reasons = {phrase(reason, request, count): count for reason, count in verdict.counts.items()}
    texts = tuple(name_pods(ledger, way.text, way.holders, namespaces) for way in ways)
    return Explanation(True, verdict.summary, reasons, texts)


def _admitted(ledger: Ledger, pod: Pod) -> frozenset[str]:
    """Return the nodes that may take the pod."""
    admitted = ledger.eligible.of(pod)
    return admitted & ledger.resource_claims.nodes() if is_delivered_by_claim(pod) else admitted


def _gang(ledger: Ledger, gang: Gang) -> Explanation:
    pending = {pod.spec.scheduler_name for pod in ledger.gangs.members(gang)}
    members = members_of(ledger, gang, pending)
    if members.problem:
        return Explanation(True, members.problem, {}, _gang_remedies(ledger, gang))
    pods = members.waiting[: max(members.least, 1)]
    claims = [ledger.claim_of(pod) for pod in pods]
    try:
        requests = [request_of(claim) for claim in claims if claim is not None]
    except InvalidRequest as error:
        return Explanation(
            True, f"gang {gang.name}: the claim is invalid: {error}", {}, ("correct the claim",)
        )
    topology = claims[0].spec.topology if claims and claims[0] is not None else None
    level = level_of(claims[0], (topology.level,)) if claims and topology is not None else None
    nodes = [_admitted(ledger, pod) for pod in pods]
    found = place_members(ledger, pods, requests, nodes, level if isinstance(level, Level) else None)
    if isinstance(found, GangFits):
        return Explanation(True, f"gang {gang.name} fits; the scheduler has not started it yet", {})
    why = with_all_nodes(ledger, pods[found.stuck], found.why)
    reasons = {phrase(reason, why.request, count): count for reason, count in why.counts.items()}
    ways = _gang_ways(ledger, pods, requests, nodes, found)
    return Explanation(True, gang_sentence(ledger, gang.name, pods, found), reasons, tuple(ways))


def _gang_ways(
    ledger: Ledger,
    pods: Sequence[Pod],
    requests: Sequence[Request],
    nodes: Sequence[frozenset[str]],
    found: GangRefused,
) -> list[str]:
    """Return changes of all members after which the gang would fit now."""
    ways = [f"start it with {found.placed} instead of {found.size} pods"] if found.placed else []
    if found.label and isinstance(place_members(ledger, pods, requests, nodes), GangFits):
        ways.append(f"accept nodes with different {found.label}")
    for kind, text, _ in relaxed(requests[0]):
        without = [
            next((changed for other, _, changed in relaxed(request) if other == kind), request)
            for request in requests
        ]
        if isinstance(place_members(ledger, pods, without, nodes), GangFits):
            ways.append(text)
    for fewer in range(requests[0].count - 1, 0, -1):
        smaller = [replace(request, count=min(fewer, request.count)) for request in requests]
        if isinstance(place_members(ledger, pods, smaller, nodes), GangFits):
            return [*ways, f"ask for {fewer} instead of {requests[0].count} GPUs per pod"]
    return ways


def _gang_remedies(ledger: Ledger, gang: Gang) -> tuple[str, ...]:
    needs = ledger.gangs.requirements(gang)
    if needs is None:
        return (f"create PodGroup {gang.name}, or set {GANG_SIZE} on the claim",)
    missing = needs.min_members - len(ledger.gangs.members(gang))
    return (f"create {missing} more",) if missing > 0 else ()


def name_pods(ledger: Ledger, text: str, holders: tuple[str, ...], namespaces: Namespaces) -> str:
    """Return a text with the names of pods for their holders; those outside `namespaces` stay unnamed."""
    for holder in holders:
        pod = ledger.pods.get(uid_of(holder))
        name = f"pod {pod.metadata.namespace}/{pod.metadata.name}" if pod else f"holder {uid_of(holder)}"
        if namespaces is not None and (pod is None or pod.metadata.namespace not in namespaces):
            name = "a pod of another namespace"
        text = text.replace(holder, name)
    return text


def _ids(fits: Fits) -> str:
    return ",".join(map(str, fits.gpus))
