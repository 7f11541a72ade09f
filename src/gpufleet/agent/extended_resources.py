"""Publish the GPUs of this node as extended resources in the status of its Node.

The kubelet keeps resources that it does not manage, but sets them to 0 when it registers the node again. So the Node
is compared with the GPUs when they change and every few minutes. A kubelet ignores requests for a resource that its
node does not have, so a pod is never refused because this write has not happened yet.
"""

import asyncio
from collections.abc import Callable, Sequence

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes import NODES, KubeClient
from gpufleet.kubernetes.client.errors import KubernetesRefused
from gpufleet.kubernetes.client.patch import merge
from gpufleet.kubernetes.extended_resources import capacity
from gpufleet.model.device import Device
from gpufleet.runtime.logs import get_logger

_log = get_logger("agent")


class ExtendedResources:
    """Keeps the extended resources of one Node equal to its GPUs."""

    def __init__(
        self, client: KubeClient, node: str, devices: Callable[[], Sequence[Device]], check: float
    ) -> None:
        self._client = client
        self._node = node
        self._devices = devices
        self._check = check
        self._wake = asyncio.Event()
        self._published: dict[str, str] = {}
        self._error = ""

    def on_read(self) -> None:
        """Compare the Node soon, if the GPUs have changed."""
        if self._capacity() != self._published:
            self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            try:
                async with asyncio.timeout(self._check * (0.9 + 0.2 * self._client.timing.random())):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            wanted = self._capacity()
            if wanted:
                await self._publish(wanted)

    def _capacity(self) -> dict[str, str]:
        devices = self._devices()
        found = capacity(len(device.mig) for device in devices) if devices else {}
        return {name: str(number) for name, number in found.items()}

    async def _publish(self, wanted: dict[str, str]) -> None:
        try:
            status = (await self._client.get(NODES, self._node)).status
            if not (
                wanted.items() <= status.capacity.items() and wanted.items() <= status.allocatable.items()
            ):
                fields = {"status": {"capacity": wanted, "allocatable": wanted}}
                await self._client.patch(NODES, self._node, merge(fields), subresource="status")
        except (KubernetesUnavailable, KubernetesRefused) as error:
            if str(error) != self._error:
                _log.warning("extended_resources_not_published", node=self._node, error=str(error))
            self._error = str(error)
            return
        self._published, self._error = wanted, ""
