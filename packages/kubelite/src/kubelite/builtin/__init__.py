"""The built-in kinds: their fields, defaults and validation."""
