"""Why a claim or a pod waits, in one sentence, and what would make it fit."""

from contextlib import ExitStack
from dataclasses import dataclass

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement.gang import GangFits, place_gang
from gpufleet.placement.reasons import phrase
from gpufleet.placement.remedies import remedies
from gpufleet.placement.verdict import Fits
from gpufleet.scheduler.state.claim_requests import gang_terms, request_of
from gpufleet.scheduler.state.eligible_nodes import open_to
from gpufleet.scheduler.state.ledger import Ledger, uid_of


@dataclass(frozen=True)
class Explanation:
    """One sentence; the nodes by reason; what would make it fit (or what it got)."""

    waiting: bool
    sentence: str
    reasons: dict[str, int]
    remedies: tuple[str, ...] = ()


def explain(ledger: Ledger, namespace: str, claim: str, pod: Pod | None = None) -> Explanation:
    """Explain a claim, or one pod that names it."""
    found = ledger.claims.get((namespace, claim))
    if found is None:
        return Explanation(
            True,
            f"GpuClaim {namespace}/{claim} does not exist",
            {},
            (f"create GpuClaim {claim} in {namespace}",),
        )
    pods = [pod] if pod is not None else ledger.pods_of(namespace, claim)
    open_pods = [each for each in pods if not each.spec.node_name and not each.finished]
    if pods and not open_pods:
        return _served(pods)
    return _waiting(ledger, found, open_pods)


def explain_pod(ledger: Ledger, pod: Pod) -> Explanation:
    """Explain a pod by the claim that it names."""
    claim = pod.metadata.annotations.get(CLAIM)
    if not claim:
        return Explanation(
            False,
            f"pod {pod.metadata.namespace}/{pod.metadata.name} names no GpuClaim: gpufleet gives it no GPU",
            {},
            (f"set its annotation {CLAIM}",),
        )
    return explain(ledger, pod.metadata.namespace, claim, pod)


def _served(pods: list[Pod]) -> Explanation:
    got = [pod.metadata.annotations.get(ALLOCATED) or pod.spec.node_name for pod in pods if not pod.finished]
    ended = sum(pod.finished for pod in pods)
    if got:
        return Explanation(False, f"served: {', '.join(got[:8])}{' …' if len(got) > 8 else ''}", {})
    return Explanation(False, f"all {ended} pods that name it have ended; nothing is held", {})


def _waiting(ledger: Ledger, claim: GpuClaim, pods: list[Pod]) -> Explanation:
    try:
        request = request_of(claim)
    except InvalidRequest as error:
        return Explanation(True, f"the claim can't be served: {error}", {}, ("correct the claim",))
    if (gang := _gang(ledger, claim, pods)) is not None:
        return gang
    pod = pods[0] if pods else None
    if pod is not None:
        with ledger.without(pod.metadata.uid):
            verdict = ledger.cluster.place(request)
            ways = remedies(ledger.cluster, request) if not isinstance(verdict, Fits) else []
    else:
        verdict = ledger.cluster.place(request)
        ways = remedies(ledger.cluster, request) if not isinstance(verdict, Fits) else []
    if isinstance(verdict, Fits):
        if pod is None:
            return Explanation(
                False, f"no pod names the claim yet; it fits on {verdict.node} GPUs {_ids(verdict)}", {}
            )
        return Explanation(
            True,
            f"GPUs {_ids(verdict)} of {verdict.node} are free for it: the scheduler has not come to it yet, "
            "or taints, affinity, CPU or memory keep the pod off",
            {},
            ("see the events of the pod (kubectl describe pod)",),
        )
    reasons = {phrase(reason, request): count for reason, count in verdict.counts.items()}
    told = tuple(_name_pods(ledger, way.text, way.holders) for way in ways)
    return Explanation(True, verdict.summary, reasons, told)


def _gang(ledger: Ledger, claim: GpuClaim, pods: list[Pod]) -> Explanation | None:
    name = claim.spec.gang_ref
    if not name or not pods:
        return None
    namespace = claim.metadata.namespace
    terms = gang_terms(ledger.groups.get((namespace, name)), claim)
    if terms is None:
        return Explanation(
            True,
            f"gang {name}: there is no PodGroup {namespace}/{name}, and the claim doesn't say its size",
            {},
            (f"create the PodGroup, or set gpu.scheduling/gang-size on claim {claim.metadata.name}",),
        )
    members = gang_members(ledger, namespace, name)
    there = len(members)
    if there >= terms[0]:
        return _whole_gang(ledger, name, members[: terms[0]])
    return Explanation(
        True,
        f"gang {name}: {there} of {terms[0]} members are there",
        {},
        (f"create {terms[0] - there} more",),
    )


def _whole_gang(ledger: Ledger, name: str, members: list[Pod]) -> Explanation | None:
    """Whether there is room for all at once; None if there is, or if some have begun already."""
    claims = [ledger.claim_of(pod) for pod in members if not pod.spec.node_name]
    try:
        requests = [request_of(claim) for claim in claims if claim is not None]
    except InvalidRequest:
        return None
    if len(requests) < len(members):
        return None
    with ExitStack() as aside:
        # What its members have got already is not in the gang's way.
        for pod in members:
            aside.enter_context(ledger.without(pod.metadata.uid))
        verdict = place_gang(ledger.cluster, requests, eligible_nodes=open_to(ledger.nodes.values(), members))
    if isinstance(verdict, GangFits):
        return None
    reasons = {phrase(reason, requests[0]): count for reason, count in verdict.why.counts.items()}
    return Explanation(True, f"gang {name}: {verdict.summary}", reasons)


def gang_members(ledger: Ledger, namespace: str, gang: str) -> list[Pod]:
    """The living pods whose claims name the gang, oldest first."""
    pods = [
        pod
        for (space, name), claim in ledger.claims.items()
        if space == namespace and claim.spec.gang_ref == gang
        for pod in ledger.pods_of(space, name)
        if not pod.finished and pod.metadata.deletion_timestamp is None
    ]
    return sorted(pods, key=lambda pod: (str(pod.metadata.creation_timestamp), pod.metadata.name))


def _name_pods(ledger: Ledger, text: str, holders: tuple[str, ...]) -> str:
    for holder in holders:
        pod = ledger.pods.get(uid_of(holder))
        name = f"pod {pod.metadata.namespace}/{pod.metadata.name}" if pod else f"holder {uid_of(holder)}"
        text = text.replace(holder, name)
    return text


def _ids(fits: Fits) -> str:
    return ",".join(map(str, fits.gpus))
