"""Access to PostgreSQL: the embedded server, connections, migrations, leadership."""
