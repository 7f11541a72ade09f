"""The GPUs that a pod already has by its leases, as a placement, and the pods that are in the way of one."""

from collections.abc import Mapping

from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Exclusivity, Fits, Request
from gpufleet.placement.request import WHOLE
from gpufleet.scheduler.state.claim_requests import valid_request
from gpufleet.scheduler.state.ledger import Ledger


def complete_allocation(request: Request, node: str, leased: Mapping[int, LeaseHolder]) -> Fits | None:
    """Return a pod's leases on a node as a placement, if they are exactly what the request needs."""
    instances = tuple((gpu, each) for gpu, holder in sorted(leased.items()) for each in holder.instances)
    if request.exclusivity is Exclusivity.MIG:
        enough = len(instances) == request.count
    else:
        enough = len(leased) == request.count and not instances
    if not enough or any(holder.milli != request.milli_per_gpu for holder in leased.values()):
        return None
    return Fits(request, node, tuple(sorted(leased)), instances)


def leased_places(ledger: Ledger, uid: str, request: Request) -> list[Fits]:
    """Return the places of which the pod has all leases."""
    found = (complete_allocation(request, node, leased) for node, leased in ledger.held_by(uid).items())
    return [fits for fits in found if fits is not None]


def has_started(ledger: Ledger, pod: Pod) -> bool:
    """Return whether a pod is bound or has all of its leases."""
    if pod.spec.node_name:
        return True
    claim = ledger.claim_of(pod)
    request = valid_request(claim) if claim is not None else None
    return request is not None and bool(leased_places(ledger, pod.metadata.uid, request))


def unblocked(ledger: Ledger, uid: str, fits: Fits) -> bool:
    """Return whether leases and ResourceClaims of others, and device-plugin pods, leave these GPUs to the pod."""
    return not ledger.cluster.has_taken(fits) and all(_is_open(ledger, uid, fits, gpu) for gpu in fits.gpus)


def blocking_pods(ledger: Ledger, uid: str, fits: Fits) -> set[str]:
    """Return the other pods that have these GPUs."""
    return {other for gpu in fits.gpus for other in ledger.holders(fits.node, gpu) if other != uid}


def _is_open(ledger: Ledger, uid: str, fits: Fits, gpu: int) -> bool:
    others = [holder for other, holder in ledger.holders(fits.node, gpu).items() if other != uid]
    if fits.instances:
        mine = {instance for at, instance in fits.instances if at == gpu}
        return not any(holder.milli or mine & set(holder.instances) for holder in others)
    return sum(holder.milli for holder in others) + fits.request.milli_per_gpu <= WHOLE
