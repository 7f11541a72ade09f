"""A real Kueue manager beside the control plane, and the objects that its users write."""

from e2e.kueue.manager import Kueue

__all__ = ["Kueue"]
