"""Commands that show a server's data in a terminal: connections, tables and output formats."""
