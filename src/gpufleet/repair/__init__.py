"""From fault to repair: take nodes with unhealthy GPUs out of service, repair, test and return them."""
