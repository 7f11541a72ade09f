"""A thousand nodes and two thousand pods at once: how fast they are bound, and where the time goes."""
