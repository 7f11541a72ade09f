"""A Model Context Protocol server with read-only tools over the API of a gpufleet server."""
