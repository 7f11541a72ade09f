"""The HTTP layer: routing, middleware, envelopes, errors, responses."""
