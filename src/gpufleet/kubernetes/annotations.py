"""The names that pods, claims and leases carry between user, webhook and scheduler."""

CLAIM = "gpu.scheduling/claim"
"""On a pod, by its user: the GpuClaim in the pod's namespace that it wants served."""

ALLOCATED = "gpu.scheduling/allocated"
"""On a pod, by the scheduler with the binding: node and GPU ids, as in `node-a:0,1`."""

VISIBLE = "gpu.scheduling/visible-devices"
"""On a pod, with the binding: bare ids, or UUIDs of MIG instances; for CUDA_VISIBLE_DEVICES by the downward API."""

NUDGE = "gpu.scheduling/nudge"
"""On a waiting pod: changed to make kube-scheduler look at the pod again, and to outdate bindings under way."""

GANG_GATE = "gpu.scheduling/gang"
"""The schedulingGate that holds a member back until its gang is planned."""

GANG_SIZE = "gpu.scheduling/gang-size"
GANG_TIMEOUT = "gpu.scheduling/gang-timeout-seconds"
"""On a claim with gangRef, where the PodGroup CRD is absent: `minMember` and `scheduleTimeoutSeconds`."""

HOLDERS = "gpu.scheduling/holders"
"""On a lease: who holds how much of the GPU, as JSON."""

LEASE_NODE = "gpu.scheduling/node"
LEASE_GPU = "gpu.scheduling/gpu"
"""On a lease: node and GPU id, also where the lease's name had to be cut."""
