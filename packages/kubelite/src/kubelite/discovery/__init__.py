"""What clients ask first: health, version, discovery documents and OpenAPI."""
