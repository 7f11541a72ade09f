"""Authentication and authorization: static tokens, TokenReview, workload tokens, roles."""
