"""The live picture of one cluster and the questions that it answers."""
