"""Tell which gang a pod belongs to, and how many members the gang needs.

A pod names its gang by the native `spec.schedulingGroup`, by the label of a `scheduling.x-k8s.io`
PodGroup, or by its claim's `gangRef`. A `gangRef` is static text in a template, so several groups
of pods may carry the same one: if no PodGroup has that name, the gang is limited to one group of a
LeaderWorkerSet, to one JobSet, or to the pods of one owner. Two runs of a CronJob are two gangs.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.kubernetes.annotations import (
    GANG_MAX_SIZE,
    GANG_SIZE,
    GANG_TIMEOUT,
    JOBSET_UID_LABEL,
    LWS_GROUP_LABEL,
    LWS_SIZE,
    POD_GROUP_LABEL,
)
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import Pod, PodGroup

GANG_TIMEOUT_S = 60.0
"""Seconds that a planned gang may take to be bound, by default."""

NATIVE = "scheduling.k8s.io"
"""The scope of gangs that a native PodGroup defines."""


class Gang(NamedTuple):
    """The identity of a gang; `scope` tells gangs with the same name apart."""

    namespace: str
    name: str
    scope: str = ""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class GangRequirements(NamedTuple):
    """The size of a gang and the seconds it may take to be bound."""

    min_members: int
    timeout: float
    max_members: int | None = None


def group_label(pod: Pod) -> str:
    """Return the name of the PodGroup that the pod itself names, if any."""
    native = pod.spec.scheduling_group
    return (native.pod_group_name if native else "") or pod.metadata.labels.get(POD_GROUP_LABEL, "")


def gang_of(pod: Pod, claim: GpuClaim | None, groups: Mapping[tuple[str, str], PodGroup]) -> Gang | None:
    """Return the gang of a pod that uses `claim`, if it is a member of one."""
    if claim is None:
        return None
    meta, native = pod.metadata, pod.spec.scheduling_group
    if native is not None and native.pod_group_name:
        return Gang(meta.namespace, native.pod_group_name, NATIVE)
    name = meta.labels.get(POD_GROUP_LABEL) or claim.spec.gang_ref
    if not name:
        return None
    if meta.labels.get(POD_GROUP_LABEL) or (meta.namespace, name) in groups:
        return Gang(meta.namespace, name)
    owner = meta.controller
    scope = (
        meta.labels.get(LWS_GROUP_LABEL)
        or meta.labels.get(JOBSET_UID_LABEL)
        or (owner.uid if owner is not None else "")
    )
    return Gang(meta.namespace, name, scope)


def requirements(
    group: PodGroup | None, members: Iterable[Pod], claims: Iterable[GpuClaim]
) -> GangRequirements | None:
    """Read the size from the PodGroup, the LeaderWorkerSet or the claims; None if none of them has it."""
    claims = list(claims)
    largest = max((number(claim.metadata.annotations, GANG_MAX_SIZE) or 0 for claim in claims), default=0)
    timeout = max((number(claim.metadata.annotations, GANG_TIMEOUT) or 0 for claim in claims), default=0)
    if group is not None:
        least = group.spec.min_member
        timeout = group.spec.schedule_timeout_seconds or 0
    else:
        sizes = [number(claim.metadata.annotations, GANG_SIZE) or 0 for claim in claims]
        least = max(sizes, default=0) or max(
            (number(pod.metadata.annotations, LWS_SIZE) or 0 for pod in members), default=0
        )
        if not least:
            return None
    return GangRequirements(least, float(timeout) if timeout > 0 else GANG_TIMEOUT_S, largest or None)


def number(annotations: Mapping[str, str], key: str) -> int | None:
    """Parse a positive number; return None for anything else, since users write these annotations."""
    text = annotations.get(key)
    return int(text) or None if text and re.fullmatch(r"[0-9]{1,9}", text) else None
