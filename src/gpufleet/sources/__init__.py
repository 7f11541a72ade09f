"""What fills a fleet: Kubernetes, Slurm, Docker, this machine, a simulation."""
