"""The agent's DRA driver: what it publishes, and what it tells the kubelet."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from gpufleet.agent.dra.devices import DraDevice, dra_devices
from gpufleet.agent.dra.plugin import DraPlugin
from gpufleet.agent.dra.slices import SlicePublisher
from gpufleet.agent.monitor import Observation
from gpufleet.kubernetes import KubeClient
from gpufleet.kubernetes.resource_claims import AGENT_DRIVER


class DraDriver:
    """Publishes the GPUs that the monitor reads, and prepares claims for them."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        kubelet: Path,
        cordoned: Callable[[], frozenset[int]],
    ) -> None:
        """`cordoned` returns the ids of the GPUs that an operator has cordoned."""
        self._cordoned = cordoned
        self._observation: Observation | None = None
        self._read = asyncio.Event()
        self.slices = SlicePublisher(client, node, AGENT_DRIVER, self._devices)
        self.plugin = DraPlugin(client, node, AGENT_DRIVER, kubelet, self._by_name)

    def tasks(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return the tasks to run, by name."""
        return {
            "resource slices": self.slices.watch.run,
            "publish resource slices": self.slices.run,
            "dra plugin": self._serve,
        }

    def on_read(self, observation: Observation) -> None:
        """Publish what changed; a driver that never answered has no GPUs to publish."""
        if observation.devices or not observation.problem:
            self._observation = observation
            self._read.set()
            self.slices.wake()

    async def _serve(self) -> None:
        """Register when the devices are known, so that no claim is refused for their lack."""
        await self._read.wait()
        await self.plugin.run()

    def _devices(self) -> tuple[DraDevice, ...] | None:
        return dra_devices(self._observation, self._cordoned()) if self._observation is not None else None

    def _by_name(self) -> Mapping[str, DraDevice]:
        return {each.name: each for each in self._devices() or ()}
