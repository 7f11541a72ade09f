"""The documentation site: pages generated from the code, and the MkDocs configuration that builds `docs/`."""
