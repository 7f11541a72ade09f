"""The custom resources GpuClaim, GpuNodeStatus, GpuQueue and GpuRepair, and the generator of their definitions."""

GROUP = "gpu.scheduling"
VERSION = "v1"
