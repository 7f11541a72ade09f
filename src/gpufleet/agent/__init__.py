"""The agent: one on each node, for devices, health, the exporter and training logs."""
