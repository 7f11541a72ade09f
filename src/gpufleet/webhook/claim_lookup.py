"""Find GpuClaims: in the cache of a watch, else with a request."""

from gpufleet.kubernetes import GPU_CLAIMS, KubeClient, Reflector
from gpufleet.kubernetes.client.errors import ObjectNotFound
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim


class ClaimLookup:
    """Looks claims up. A claim created just before its pod may not have reached the watch yet."""

    def __init__(self, client: KubeClient) -> None:
        self.watch: Reflector[GpuClaim] = Reflector(client, GPU_CLAIMS)
        self._client = client

    async def find(self, namespace: str, name: str) -> GpuClaim | None:
        """Return the claim, or None if it does not exist."""
        if self.watch.state.watching and (found := self.watch.cache.get(name, namespace)):
            return found
        try:
            return await self._client.get(GPU_CLAIMS, name, namespace)
        except ObjectNotFound:
            return None
