"""GpuQueues in the scheduler: which queue a pod belongs to, what the queue has, and what it may get."""
