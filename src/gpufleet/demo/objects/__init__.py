"""The simulated fleet as Kubernetes, Slurm and Docker show it."""
