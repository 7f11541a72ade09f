"""CustomResourceDefinitions: kinds, validation and CEL rules."""
