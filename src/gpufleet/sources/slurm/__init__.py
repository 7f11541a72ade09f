"""Fills a fleet from Slurm: nodes with GPUs, and the jobs that ask for them."""

from gpufleet.sources.slurm.source import SlurmSource

__all__ = ["SlurmSource"]
