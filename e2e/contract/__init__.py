"""kubelite's contract suite on the real API server."""
