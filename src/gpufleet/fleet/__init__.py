"""The live state of one cluster and the queries it answers."""
