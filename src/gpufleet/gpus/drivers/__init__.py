"""GPU drivers: NVML, AMD SMI and a simulated one behind the same interface."""
