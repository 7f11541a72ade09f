"""Fill the fleet from Slurm: nodes with GPUs, and the jobs that request them."""

from gpufleet.sources.slurm.source import SlurmSource

__all__ = ["SlurmSource"]
