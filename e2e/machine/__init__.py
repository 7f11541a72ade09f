"""A whole cluster on one machine, with pods that have addresses; see docs/e2e.md."""

from e2e.machine.machine import Machine

__all__ = ["Machine"]
