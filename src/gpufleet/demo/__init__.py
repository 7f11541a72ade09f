"""`gpufleet demo`: a simulated fleet, the APIs that show it, and a control plane beside it."""
