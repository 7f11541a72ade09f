"""Build a server from its settings: open the store, the clusters and the sources, and add the routes."""
