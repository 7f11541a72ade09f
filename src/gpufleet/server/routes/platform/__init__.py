"""Routes of the server itself: login, health, API documentation, debugging."""
