"""Fill the fleet from Slurm: nodes with GPUs, and the jobs that request them."""
