"""PostgreSQL: migrations, queries, the embedded server."""
