"""Delivery by ResourceClaims (mode `dra`): write allocations, keep templates, find GPUs that are allocated twice."""
