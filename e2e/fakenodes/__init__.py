"""Nodes that exist only in the API server; see docs/e2e.md."""

from e2e.fakenodes.nodes import FakeNodes
from e2e.fakenodes.pods import EXIT_CODE, RUNS_FOR, STARTS_AFTER

__all__ = ["EXIT_CODE", "RUNS_FOR", "STARTS_AFTER", "FakeNodes"]
