"""A fleet that is not there, for demonstrations and tests: seeded, and the same at the same time."""
