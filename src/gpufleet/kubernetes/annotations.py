"""Names of the annotations and gates that users, webhook and scheduler exchange on pods, claims and leases.

`kept_annotations` is the list of what is kept of the annotations that users write: they may be large, and
`kubectl apply` puts the whole manifest into one, with the environment variables.
"""

import re
from collections.abc import Collection, Mapping

CLAIM = "gpu.scheduling/claim"
"""On a pod, set by its user: the GpuClaim in the pod's namespace."""

ALLOCATED = "gpu.scheduling/allocated"
"""On a pod, set by the scheduler with the Binding: node and GPU ids (see `allocation`)."""

VISIBLE = "gpu.scheduling/visible-devices"
"""On a pod, set with the Binding: UUIDs of its GPUs or MIG instances, or else GPU ids. NVIDIA_VISIBLE_DEVICES,
CUDA_VISIBLE_DEVICES and their counterparts of AMD read it through the downward API."""

REQUESTED = "gpu.scheduling/requested-devices"
"""On a pod, set by the webhook: how many GPUs it requested from a device plugin, before its claim replaced the request."""

NUDGE = "gpu.scheduling/nudge"
"""On a pending pod: changed to make kube-scheduler retry the pod and to invalidate Bindings in flight."""

GANG_GATE = "gpu.scheduling/gang"
"""The schedulingGate that holds a member until its gang is planned."""

GANG_SIZE = "gpu.scheduling/gang-size"
GANG_TIMEOUT = "gpu.scheduling/gang-timeout-seconds"
"""On a claim with gangRef, where the PodGroup CRD is not installed: `minMember` and `scheduleTimeoutSeconds`."""

GANG_MAX_SIZE = "gpu.scheduling/gang-max-size"
"""On a claim with gangRef: members beyond this number are not scheduled."""

MAX_RUNTIME = "gpu.scheduling/max-runtime-seconds"
"""On a pod: its longest run time, for backfill, where the pod has no activeDeadlineSeconds."""

CHECKPOINT_GRACE = "gpu.scheduling/checkpoint-grace-seconds"
"""On a pod, set by its user: how long it needs to write a checkpoint before it may be evicted for a repair."""

EVICT_STRAGGLER = "gpu.scheduling/evict-straggler-seconds"
"""On a pod, set by its user: evict it with its gang once it has been a straggler for so long."""

EVICT_AT = "gpu.scheduling/evict-at"
"""On a pod, set by `gpufleet repair`: when it is evicted, because its GPU is faulty."""

RELEASE_DRIVER = "gpu.scheduling/release-driver-until"
"""On a GpuNodeStatus, set by `gpufleet repair`: the agent keeps the GPU driver closed until then, for a reset."""

REPAIR_LABEL = "gpu.scheduling/repair"
"""On the Jobs of a repair and their pods: a hash of the node's name."""

POD_GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
LWS_GROUP_LABEL = "leaderworkerset.sigs.k8s.io/group-key"
LWS_SIZE = "leaderworkerset.sigs.k8s.io/size"
JOBSET_UID_LABEL = "jobset.sigs.k8s.io/jobset-uid"
"""On pods, set by users or other controllers: what tells one gang from another."""

SHARE = "gpu.scheduling/share"
"""On a ResourceClaim of a Shared claim (mode `dra`), by its template: the part of each GPU, in thousandths."""

HOLDERS = "gpu.scheduling/holders"
"""On a lease, as JSON: the pods that hold the GPU and how much of it each has."""

LEASE_NODE = "gpu.scheduling/node"
LEASE_GPU = "gpu.scheduling/gpu"
"""On a lease: node and GPU id, because long node names are cut in the lease's name."""

LEASE_MODEL = "gpu.scheduling/model"
"""On a lease: the GPU's product name."""

MIRROR = "kubernetes.io/config.mirror"
"""On a static pod, set by its kubelet."""

KAI_FRACTION = "gpu-fraction"
KAI_MEMORY = "gpu-memory"
KAI_DEVICES = "gpu-fraction-num-devices"
"""On pods of the KAI scheduler: the part of a GPU, its memory in MiB, of how many GPUs."""

NV_FRACTION = re.compile(
    r"nvidia\.com/container\.(.+)\.(gpu-memory\.request|gpu-memory\.limit|gpus\.devices)"
)
"""Annotations of NvFractions (`nv_fractions.py`): the name of the container and what they say."""

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"

_MAX_BYTES = 256
_MAX_ALLOCATION = 4096
"""8 GPUs with 7 MIG instances each have UUIDs of 2.4 KB."""

_READ = {
    **dict.fromkeys((ALLOCATED, VISIBLE), _MAX_ALLOCATION),
    **dict.fromkeys(
        (CLAIM, REQUESTED, NUDGE, MAX_RUNTIME, CHECKPOINT_GRACE, EVICT_STRAGGLER, EVICT_AT), _MAX_BYTES
    ),
    **dict.fromkeys((LWS_SIZE, MIRROR, KAI_FRACTION, KAI_MEMORY, KAI_DEVICES), _MAX_BYTES),
}


def kept_annotations(annotations: Mapping[str, str], more: Collection[str] = ()) -> dict[str, str]:
    """Return the annotations that gpufleet reads, and those in `more`, which the settings name.

    Values are cut at 256 bytes, lists of GPUs at 4 KiB.
    """
    return {
        key: value.encode()[: _READ.get(key, _MAX_BYTES if key in more else _MAX_ALLOCATION)].decode(
            errors="ignore"
        )
        for key, value in annotations.items()
        if (key in _READ or key in more or NV_FRACTION.fullmatch(key)) and key != LAST_APPLIED
    }
