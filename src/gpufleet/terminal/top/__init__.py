"""`gpufleet top`: the fleet on the whole screen, refreshed."""
