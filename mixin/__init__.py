"""Alerts, recording rules and dashboards of gpufleet, generated from the tables in `mixin/table`."""
