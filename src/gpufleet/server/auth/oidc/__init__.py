"""Login with an OpenID Connect provider: bearer tokens, and sign-in of the page with a session cookie."""
