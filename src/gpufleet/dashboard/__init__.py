"""The HTTP edge for people: serves the built web page."""
