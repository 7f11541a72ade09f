"""Kill, pause and disconnect every component under load, and check that nothing was lost."""
