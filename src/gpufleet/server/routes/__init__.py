"""The routes of the REST API: a package per subject, a module per group of paths."""
