"""The requests of pods, read once from each state of a claim."""

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Request
from gpufleet.scheduler.state import Ledger, request_of
from gpufleet.scheduler.state.claim_requests import admitted_otherwise
from gpufleet.scheduler.state.indexes import Key


class PodRequests:
    """Finds what pods request; the requests of known claims are cached."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._cached: dict[Key, tuple[GpuClaim, Request]] = {}

    def of(self, pod: Pod) -> Request | str:
        """Return the request of a pod, or why it has none."""
        claim = self._ledger.claim_of(pod)
        meta = pod.metadata
        if claim is None:
            return f"GpuClaim {meta.namespace}/{meta.annotations.get(CLAIM, '')} does not exist"
        if difference := admitted_otherwise(pod, claim):
            return difference
        key = (meta.namespace, claim.metadata.name)
        known = self._cached.get(key)
        if known is not None and known[0] is claim:
            return known[1]
        try:
            request = request_of(claim)
        except InvalidRequest as error:
            return f"the claim is invalid: {error}"
        if len(self._cached) > 2 * len(self._ledger.claims) + 100:
            self._cached.clear()
        self._cached[key] = (claim, request)
        return request
