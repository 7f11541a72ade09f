"""The custom resources GpuClaim, GpuNodeStatus and GpuRepair, and the generator of their definitions."""

GROUP = "gpu.scheduling"
VERSION = "v1"
