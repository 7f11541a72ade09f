"""The routes of the REST API, one module per API family."""
