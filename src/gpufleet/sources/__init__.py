"""Sources that fill the fleet: Kubernetes, Slurm, Docker, this machine."""
