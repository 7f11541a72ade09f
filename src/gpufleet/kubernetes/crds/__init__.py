"""The custom resources GpuClaim and GpuNodeStatus, and the generator of their definitions."""

GROUP = "gpu.scheduling"
VERSION = "v1"
