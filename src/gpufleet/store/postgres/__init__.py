"""PostgreSQL itself: the embedded server, connections, migrations, leadership."""
