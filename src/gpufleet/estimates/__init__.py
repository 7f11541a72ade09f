"""Estimate when waiting units start, and forecast demand, from what was seen before. Nothing here does I/O."""
