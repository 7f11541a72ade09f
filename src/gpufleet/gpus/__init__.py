"""GPUs of this machine: drivers, topology and health."""
