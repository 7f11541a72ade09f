"""Replay a trace of GPU tasks and compare placement policies (`gpufleet simulate`)."""
