"""A real node for the end-to-end tests; see docs/e2e.md."""

from e2e.node.gpus import Access
from e2e.node.node import Node

__all__ = ["Access", "Node"]
