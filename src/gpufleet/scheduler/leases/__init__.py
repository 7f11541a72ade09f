"""The leases that hold GPUs for pods: written before binding, collected when they are not needed."""
