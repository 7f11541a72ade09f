"""The API server: HTTP layer, routes, authentication, and the wiring of its components."""
