"""The admission webhook: tells pods which GPUs are theirs, checks claims, looks after its own certificates."""
