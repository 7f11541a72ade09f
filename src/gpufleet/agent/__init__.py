"""On each node: publishes GPUs and their health, exports metrics, follows training logs."""
