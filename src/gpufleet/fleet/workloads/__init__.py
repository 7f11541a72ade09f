"""Workloads of one cluster: owners and pods, lists, lookups and summaries."""
