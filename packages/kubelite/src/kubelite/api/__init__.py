"""The HTTP layer: requests, responses, watches."""
