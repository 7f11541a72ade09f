"""The simulated fleet: pure functions of seed and time."""
