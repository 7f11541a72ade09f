"""The kinds that every cluster has: their names and fields as tables, their defaults and rules as code."""
