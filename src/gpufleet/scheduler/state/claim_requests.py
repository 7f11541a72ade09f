"""What a GpuClaim asks for, as placement's request."""

import re
from collections.abc import Mapping

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.annotations import GANG_SIZE, GANG_TIMEOUT
from gpufleet.kubernetes.crds.gpu_claim import DEFAULT_SHARE, GpuClaim
from gpufleet.kubernetes.objects import PodGroup
from gpufleet.placement.request import WHOLE, Exclusivity, Policy, Request, Topology

GANG_TIMEOUT_S = 60.0
"""How long a planned gang may take to get going, if nothing says otherwise."""


def request_of(claim: GpuClaim) -> Request:
    """The request for one pod that names the claim; InvalidRequest if it makes no sense."""
    devices, topology = claim.spec.devices, claim.spec.topology
    share = DEFAULT_SHARE if devices.share is None else devices.share
    return Request(
        count=devices.count,
        policy=Policy(devices.policy),
        prefer_ids=devices.prefer_ids if devices.policy == "preferIds" else (),
        exclusivity=Exclusivity(devices.exclusivity),
        share_milli=round(share * WHOLE),
        mig_profile=devices.mig_profile,
        topology=Topology.IGNORE if topology is None else Topology(topology.mode),
        min_bandwidth_gbps=0 if topology is None else topology.min_bandwidth_gbps,
        match_labels=frozenset(claim.spec.selector.match_labels.items())
        if claim.spec.selector
        else frozenset(),
    )


def sensible_request(claim: GpuClaim) -> Request | None:
    """The same, or None where the claim makes no sense (one from before its rules were checked, for instance)."""
    try:
        return request_of(claim)
    except InvalidRequest:
        return None


def gang_terms(group: PodGroup | None, claim: GpuClaim) -> tuple[int, float] | None:
    """How many members a gang needs and how long it may take: by its PodGroup, else by the claim's annotations."""
    if group is not None:
        timeout = group.spec.schedule_timeout_seconds or 0
        return group.spec.min_member, float(timeout) if timeout > 0 else GANG_TIMEOUT_S
    size = gang_size(claim)
    if size is None:
        return None
    return size, float(_number(claim.metadata.annotations, GANG_TIMEOUT) or GANG_TIMEOUT_S)


def gang_size(claim: GpuClaim) -> int | None:
    """How many members the claim says that its gang needs, if it says so."""
    return _number(claim.metadata.annotations, GANG_SIZE)


def _number(annotations: Mapping[str, str], key: str) -> int | None:
    """A number from 1; None for anything else that a user may have written."""
    text = annotations.get(key, "")
    return int(text) or None if re.fullmatch(r"[0-9]{1,9}", text) else None
