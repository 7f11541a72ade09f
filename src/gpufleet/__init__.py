"""gpufleet shows, accounts for and allocates the GPUs of a fleet."""

__version__ = "0.1.0"
