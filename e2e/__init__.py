"""gpufleet on a real control plane. `make e2e` runs it."""
