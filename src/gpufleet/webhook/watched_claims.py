"""Claims as the API server shows them: from a watch, and by a question where the watch has not heard yet."""

from gpufleet.kubernetes import GPU_CLAIMS, KubeClient, Reflector
from gpufleet.kubernetes.client.errors import ObjectNotFound
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim


class WatchedClaims:
    """A claim may be made a moment before its pod: what the watch doesn't have is asked for."""

    def __init__(self, client: KubeClient) -> None:
        self.watch: Reflector[GpuClaim] = Reflector(client, GPU_CLAIMS)
        self._client = client

    async def find(self, namespace: str, name: str) -> GpuClaim | None:
        """The claim of that name, if there is one."""
        if self.watch.state.watching and (found := self.watch.cache.get(name, namespace)):
            return found
        try:
            return await self._client.get(GPU_CLAIMS, name, namespace)
        except ObjectNotFound:
            return None
