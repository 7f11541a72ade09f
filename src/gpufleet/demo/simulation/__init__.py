"""The simulated fleet: pure functions of a seed and a time."""
