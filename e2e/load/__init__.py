"""Bind two thousand pods on a thousand nodes; measure the rate and where the time goes."""
