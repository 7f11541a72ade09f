"""Publish the devices of this node in ResourceSlices, and keep them published.

The agent watches the slices of its own driver and node, so that a slice that was edited, or deleted by the kubelet
because the driver was away for a while, is written again. Every change is a new generation of the pool, so that
readers never combine old and new slices. Where the API server does not know device taints and drops them, devices
with a taint are left out instead. The Node owns the slices and is deleted with them.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from gpufleet.agent.dra.devices import DraDevice
from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes import (
    NODES,
    RESOURCE_SLICES,
    Backoff,
    CacheChange,
    KubeClient,
    Reflector,
    Selection,
    Timing,
)
from gpufleet.kubernetes.client.errors import KubernetesRefused, ObjectNotFound
from gpufleet.kubernetes.client.patch import apply
from gpufleet.kubernetes.quantities import parse_quantity
from gpufleet.kubernetes.resource_claims import Device, ResourceSlice
from gpufleet.runtime.logs import get_logger

MANAGER = "gpufleet-agent"
DEVICES_PER_SLICE = 64
"""The API server's limit for devices with taints."""

Facts = tuple[object, ...]
"""What identifies the state of a device, its name first."""

_BACKOFF = Backoff(initial=0.5, maximum=60.0)
_log = get_logger("agent")


class SlicePublisher:
    """Keeps the slices of one driver on one node equal to what `devices` returns; None is not known yet."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        driver: str,
        devices: Callable[[], Sequence[DraDevice] | None],
        timing: Timing = Timing(),  # noqa: B008  (frozen)
    ) -> None:
        self.watch: Reflector[ResourceSlice] = Reflector(
            client, RESOURCE_SLICES, Selection(fields=f"spec.nodeName={node},spec.driver={driver}")
        )
        self.watch.subscribe(self._on_slices)
        self._client = client
        self._node = node
        self._driver = driver
        self._devices = devices
        self._timing = timing
        self._wake = asyncio.Event()
        self._generation = 0
        self._keeps_taints = True
        self._sent: list[Facts] = []
        self._got: list[Facts] = []
        self._error = ""

    def wake(self) -> None:
        """Compare the devices with the slices soon."""
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled; `watch.run` must run as well."""
        await self.watch.synced()
        failures = 0
        while True:
            self._wake.clear()
            devices = self._wanted()
            if devices is not None and self._differs(devices):
                try:
                    await self._write(devices)
                    failures, self._error = 0, ""
                except (KubernetesUnavailable, KubernetesRefused) as error:
                    failures += 1
                    if str(error) != self._error:
                        _log.warning("resource_slices_not_published", node=self._node, error=str(error))
                    self._error = str(error)
                    await self._timing.sleep(_BACKOFF.delay(failures, self._timing.random()))
                    continue
            await self._wake.wait()

    def _wanted(self) -> list[DraDevice] | None:
        devices = self._devices()
        if devices is None:
            return None
        return [each for each in devices if self._keeps_taints or not each.taints]

    def _differs(self, devices: Sequence[DraDevice]) -> bool:
        """Return whether the slices are not what we want, or not yet what we wrote."""
        published = list(self.watch.cache)
        generations = {each.spec.pool.generation for each in published}
        if self._generation and generations and max(generations) < self._generation:
            return False  # the watch has not shown our last write yet
        if len(generations) > 1:
            return True
        found, wanted = _published_facts(published), _wanted_facts(devices)
        # What the API server made of the same devices before, it would make of them again.
        return found != wanted and (found, wanted) != (self._got, self._sent)

    async def _write(self, devices: Sequence[DraDevice]) -> None:
        published = {each.metadata.name: each.spec.pool.generation for each in self.watch.cache}
        generation = max((self._generation, *published.values())) + 1
        starts = range(0, len(devices), DEVICES_PER_SLICE)
        names = [f"{self._driver}-{number}-{self._node}"[:253] for number in range(len(starts))]
        owner = await self._owner() if names else None
        results = []
        for name, start in zip(names, starts, strict=True):
            pool = {"name": self._node, "generation": generation, "resourceSliceCount": len(names)}
            chunk = [each.manifest() for each in devices[start : start + DEVICES_PER_SLICE]]
            spec = {"driver": self._driver, "nodeName": self._node, "pool": pool, "devices": chunk}
            metadata = {"ownerReferences": [owner]} if owner else {}
            change = apply({"metadata": metadata, "spec": spec}, manager=MANAGER)
            written = await self._client.patch(RESOURCE_SLICES, name, change)
            results.append(written)
            self._check_taints(chunk, written)
        self._generation = generation
        self._sent, self._got = _wanted_facts(devices), _published_facts(results)
        for name in published.keys() - set(names):
            try:
                await self._client.delete(RESOURCE_SLICES, name)
            except ObjectNotFound:
                continue

    def _check_taints(self, sent: Sequence[dict[str, object]], written: ResourceSlice) -> None:
        if any("taints" in each for each in sent) and not any(each.taints for each in written.spec.devices):
            _log.warning("device_taints_not_served", node=self._node)
            self._keeps_taints = False
            self.wake()

    async def _owner(self) -> dict[str, str]:
        node = await self._client.get(NODES, self._node)
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}

    def _on_slices(self, changes: Sequence[CacheChange[ResourceSlice]]) -> None:
        if any(change.after is None for change in changes):
            self._generation = 0  # deleted by somebody else, or by us: what is left counts
        self.wake()


def _published_facts(slices: Sequence[ResourceSlice]) -> list[Facts]:
    return sorted((_facts(device) for each in slices for device in each.spec.devices), key=_name)


def _wanted_facts(devices: Sequence[DraDevice]) -> list[Facts]:
    return sorted((_facts(msgspec.convert(each.manifest(), Device)) for each in devices), key=_name)


def _name(facts: Facts) -> str:
    return str(facts[0])


def _facts(device: Device) -> Facts:
    """Return what identifies a device's state; the API server may spell quantities in another way."""
    capacity = {key: parse_quantity(each.value) for key, each in device.capacity.items()}
    taints = sorted((each.key, each.effect) for each in device.taints)
    attributes = {key: (each.text, each.number) for key, each in device.attributes.items()}
    return device.name, sorted(attributes.items()), sorted(capacity.items()), taints
