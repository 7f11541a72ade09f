"""Fill the fleet from this machine: its GPUs, their readings, and the processes on them."""

from gpufleet.sources.local.source import LocalSource

__all__ = ["LocalSource"]
