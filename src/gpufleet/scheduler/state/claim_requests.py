"""Convert a GpuClaim to a placement request."""

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.annotations import GANG_SIZE, REQUESTED
from gpufleet.kubernetes.crds.gpu_claim import DEFAULT_SHARE, GpuClaim
from gpufleet.kubernetes.extended_resources import NAMES, claimed
from gpufleet.kubernetes.model_labels import with_canonical_models
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.quantities import parse_count
from gpufleet.placement.request import WHOLE, Exclusivity, Policy, Request, Topology
from gpufleet.scheduler.state.gang_identity import number


def request_of(claim: GpuClaim) -> Request:
    """Return the request of one pod that uses the claim; raise InvalidRequest if the claim is invalid."""
    devices, topology = claim.spec.devices, claim.spec.topology
    shared = devices.shared_milli
    return Request(
        count=devices.count,
        policy=Policy(devices.policy),
        prefer_ids=devices.prefer_ids if devices.policy == "preferIds" else (),
        exclusivity=Exclusivity(devices.exclusivity),
        share_milli=round(DEFAULT_SHARE * WHOLE) if shared is None else shared,
        mig_profile=devices.mig_profile,
        topology=Topology.IGNORE if topology is None else Topology(topology.mode),
        min_bandwidth_gbps=0 if topology is None else topology.min_bandwidth_gbps,
        match_labels=frozenset(with_canonical_models(claim.spec.selector.match_labels).items())
        if claim.spec.selector
        else frozenset(),
    )


def valid_request(claim: GpuClaim) -> Request | None:
    """Return the request, or None if the claim is invalid, such as one created before the CRD had its rules."""
    try:
        return request_of(claim)
    except InvalidRequest:
        return None


def invalid_reason(claim: GpuClaim) -> str:
    """Return why the claim is invalid, or an empty string."""
    try:
        request_of(claim)
    except InvalidRequest as error:
        return str(error)
    return ""


def admitted_otherwise(pod: Pod, claim: GpuClaim) -> str:
    """Return how the claim differs from what the pod requested when it was created, or an empty string.

    The claim may have been created, or deleted and created again, since the webhook and quotas have seen the pod.
    """
    devices, text = claim.spec.devices, pod.metadata.annotations.get(REQUESTED)
    if text is not None and text != str(devices.count):
        return (
            f"the pod requested {text[:20]} GPUs from a device plugin and its claim asks for {devices.count}: "
            "create the pod again with the same number"
        )
    wanted = claimed(devices)
    first = pod.spec.containers[0].resources.requests if pod.spec.containers else {}
    for name in NAMES:
        amount = first.get(name)
        if amount is not None and (name, parse_count(str(amount))) != wanted:
            return (
                f"the pod was admitted with a request for {amount} of {name} and its claim asks for {wanted.number} of "
                f"{wanted.resource}: create the pod again"
            )
    return ""


def gang_size(claim: GpuClaim) -> int | None:
    """Return the gang size in the claim's annotation, if any."""
    return number(claim.metadata.annotations, GANG_SIZE)
