"""gpufleet shows, accounts for and hands out the GPUs of a fleet."""

__version__ = "0.1.0"
