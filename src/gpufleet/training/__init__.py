"""What training jobs report: log patterns, the reporter, model FLOPs utilization."""
