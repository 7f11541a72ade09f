"""Explain why a claim or pod is pending, and what would make it fit."""

from contextlib import ExitStack
from dataclasses import dataclass

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_SIZE
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import Pod
from gpufleet.model.namespaces import Namespaces
from gpufleet.placement.gang import GangFits, place_gang
from gpufleet.placement.reasons import phrase
from gpufleet.placement.remedies import remedies
from gpufleet.placement.verdict import Fits
from gpufleet.scheduler.state.claim_requests import gang_requirements, request_of
from gpufleet.scheduler.state.eligible_nodes import eligible_nodes
from gpufleet.scheduler.state.ledger import Ledger, uid_of


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


def explain_pod(ledger: Ledger, pod: Pod) -> Explanation:
    """Explain a pod by its claim."""
    claim = pod.metadata.annotations.get(CLAIM)
    if not claim:
        return Explanation(
            False,
            f"pod {pod.metadata.namespace}/{pod.metadata.name} uses no GpuClaim, so gpufleet allocates no GPUs to it",
            {},
            (f"set its annotation {CLAIM}",),
        )
    return explain(ledger, pod.metadata.namespace, claim, pod)


def _allocated(pods: list[Pod]) -> Explanation:
    allocated = [
        pod.metadata.annotations.get(ALLOCATED) or pod.spec.node_name for pod in pods if not pod.finished
    ]
    if allocated:
        return Explanation(
            False, f"allocated: {', '.join(allocated[:8])}{' …' if len(allocated) > 8 else ''}", {}
        )
    return Explanation(False, f"all {len(pods)} pods that use the claim have finished", {})


def _pending(ledger: Ledger, claim: GpuClaim, pods: list[Pod], namespaces: Namespaces) -> Explanation:
    try:
        request = request_of(claim)
    except InvalidRequest as error:
        return Explanation(True, f"the claim is invalid: {error}", {}, ("correct the claim",))
    if (gang := _gang(ledger, claim, pods)) is not None:
        return gang
    with ledger.excluding(pods[0].metadata.uid if pods else ""):
        verdict = ledger.cluster.place(request)
        ways = remedies(ledger.cluster, request) if not isinstance(verdict, Fits) else []
    if isinstance(verdict, Fits):
        if not pods:
            return Explanation(
                False, f"no pod uses the claim yet; it fits on GPUs {_ids(verdict)} of {verdict.node}", {}
            )
        return Explanation(
            True,
            f"GPUs {_ids(verdict)} of {verdict.node} are free: either the scheduler has not tried the pod yet, "
            "or taints, affinity, CPU or memory exclude the node",
            {},
            ("see the events of the pod (kubectl describe pod)",),
        )
    reasons = {phrase(reason, request): count for reason, count in verdict.counts.items()}
    texts = tuple(_name_pods(ledger, way.text, way.holders, namespaces) for way in ways)
    return Explanation(True, verdict.summary, reasons, texts)


def _gang(ledger: Ledger, claim: GpuClaim, pods: list[Pod]) -> Explanation | None:
    name = claim.spec.gang_ref
    if not name or not pods:
        return None
    namespace = claim.metadata.namespace
    needs = gang_requirements(ledger.groups.get((namespace, name)), claim)
    if needs is None:
        return Explanation(
            True,
            f"gang {name}: PodGroup {namespace}/{name} does not exist and the claim has no annotation {GANG_SIZE}",
            {},
            (f"create the PodGroup, or set {GANG_SIZE} on claim {claim.metadata.name}",),
        )
    members = ledger.gang_members(namespace, name)
    if len(members) >= needs.min_members:
        return _whole_gang(ledger, name, members[: needs.min_members])
    return Explanation(
        True,
        f"gang {name}: {len(members)} of {needs.min_members} members exist",
        {},
        (f"create {needs.min_members - len(members)} more",),
    )


def _whole_gang(ledger: Ledger, name: str, members: list[Pod]) -> Explanation | None:
    """Explain why the gang does not fit as a whole; None if it fits, or if some members are bound."""
    claims = [ledger.claim_of(pod) for pod in members if not pod.spec.node_name]
    try:
        requests = [request_of(claim) for claim in claims if claim is not None]
    except InvalidRequest:
        return None
    if len(requests) < len(members):
        return None
    with ExitStack() as excluded:
        # The GPUs that its members already have are available to the gang.
        for pod in members:
            excluded.enter_context(ledger.excluding(pod.metadata.uid))
        verdict = place_gang(
            ledger.cluster, requests, eligible_nodes=eligible_nodes(ledger.nodes.values(), members)
        )
    if isinstance(verdict, GangFits):
        return None
    reasons = {phrase(reason, requests[0]): count for reason, count in verdict.why.counts.items()}
    return Explanation(True, f"gang {name}: {verdict.summary}", reasons)


def _name_pods(ledger: Ledger, text: str, holders: tuple[str, ...], namespaces: Namespaces) -> str:
    for holder in holders:
        pod = ledger.pods.get(uid_of(holder))
        name = f"pod {pod.metadata.namespace}/{pod.metadata.name}" if pod else f"holder {uid_of(holder)}"
        if namespaces is not None and (pod is None or pod.metadata.namespace not in namespaces):
            name = "a pod of another namespace"
        text = text.replace(holder, name)
    return text


def _ids(fits: Fits) -> str:
    return ",".join(map(str, fits.gpus))
