"""Routes over the live fleet: clusters, nodes, GPUs, workloads, their metrics and changes."""
