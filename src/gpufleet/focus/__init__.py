"""Export cost and usage in the FinOps Open Cost and Usage Specification (FOCUS), version 1.2."""
