"""The agent as a DRA driver: publishes the node's GPUs in ResourceSlices and prepares ResourceClaims."""

from gpufleet.agent.dra.driver import DraDriver

__all__ = ["DraDriver"]
