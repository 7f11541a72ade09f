"""Who may call the server: tokens, TokenReview, roles."""
