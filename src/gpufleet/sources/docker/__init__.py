"""Fill the fleet from a container engine: Docker, or Podman with its Docker API."""

from gpufleet.sources.docker.source import DockerSource

__all__ = ["DockerSource"]
