"""Every part is killed, paused and cut off under load; at the end everything must be as if nothing had been."""
