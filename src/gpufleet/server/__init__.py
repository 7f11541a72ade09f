"""The HTTP edge: REST API, envelopes, login, OpenAPI."""
