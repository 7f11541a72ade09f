"""Recent readings of all GPUs: how they are stored, compressed and read."""
