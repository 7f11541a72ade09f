"""The object store and direct access to it."""
