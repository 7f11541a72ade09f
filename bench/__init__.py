"""What gpufleet promises to be fast at, measured. `make bench` runs it; see `bench/__main__.py`."""
