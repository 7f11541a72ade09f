"""GPUs of this machine: NVML, AMD SMI, a simulation; topology and health."""
