"""Pure: which node and which GPUs for a request, or why none."""
