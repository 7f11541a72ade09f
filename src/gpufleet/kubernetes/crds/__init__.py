"""The custom resources GpuClaim, GpuNodeStatus and GpuQueue, and the generator of their definitions."""

GROUP = "gpu.scheduling"
VERSION = "v1"
