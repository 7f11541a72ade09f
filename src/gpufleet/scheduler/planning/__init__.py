"""Plan which unit gets which GPUs: the queue, gangs, reservations and preemption."""
