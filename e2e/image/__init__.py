"""The container images of the Dockerfile, built on this machine; see docs/e2e.md."""

from e2e.image.images import Images

__all__ = ["Images"]
