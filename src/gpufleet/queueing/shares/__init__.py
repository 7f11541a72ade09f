"""Arithmetic of queues: guarantees, limits, fair shares and budgets. Pure: without a clock, I/O or Kubernetes."""
