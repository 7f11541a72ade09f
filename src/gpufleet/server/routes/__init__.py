"""The routes of the REST API, one module per group of paths."""
