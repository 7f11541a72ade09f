"""Publish the GpuNodeStatus of this node: at once when something changed, else hardly ever.

The agent owns its fields by server-side apply, so that an operator's `cordoned` on the same entries
stays. Its own object is watched (one watch of one name): a cordon changes `free`, an object that
somebody deleted or bent is put right. A fleet of agents must not hurt the API server, so

- nothing is written while the report equals the last one and the object says the same;
- the first changes go out at once, then a bucket lets one through every few seconds: a GPU that
  flaps costs a handful of writes a minute, and the last state is always written;
- failures wait twice as long each time, half of it by chance;
- the heartbeat, which puts right what a missed watch event may have hidden, is spread by chance.

The object belongs to the Node: it goes when the node is deleted. The agent itself deletes nothing.
"""

import asyncio
from collections.abc import Callable, Sequence

from msgspec import structs

from gpufleet.agent.node_status import cordons
from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes import (
    GPU_NODE_STATUSES,
    NODES,
    Backoff,
    CacheChange,
    KubeClient,
    Reflector,
    Selection,
    Timing,
)
from gpufleet.kubernetes.client.errors import KubernetesRefused, ObjectNotFound
from gpufleet.kubernetes.client.patch import apply
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, NodeGpus
from gpufleet.runtime.logs import get_logger

MANAGER = "gpufleet-agent"
"""Field manager of the agent's writes."""
BURST = 6
"""Changes that go out at once before the bucket is empty."""
REFILL = 10.0
"""Seconds until the bucket lets one more through."""

Compose = Callable[[frozenset[int]], NodeGpus | None]
"""Makes the report, given which GPUs are cordoned; None while there is nothing to say yet."""

_BACKOFF = Backoff(initial=0.5, maximum=60.0)
_log = get_logger("agent")


class StatusPublisher:
    """Keeps the object of one node equal to what `compose` says."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        compose: Compose,
        *,
        heartbeat: float = 600.0,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
    ) -> None:
        self.writes = 0
        self.failures = 0
        self.error = ""
        """Why the last write failed; empty if it didn't."""
        self.watch: Reflector[GpuNodeStatus] = Reflector(
            client, GPU_NODE_STATUSES, Selection(fields=f"metadata.name={node}")
        )
        self.watch.subscribe(self._on_object)
        self._client = client
        self._node = node
        self._compose = compose
        self._heartbeat = heartbeat
        self._timing = timing
        self._wake = asyncio.Event()
        self._written: NodeGpus | None = None
        self._version = 0
        self._seen = False
        self._tokens = float(BURST)
        self._filled_at = timing.monotonic()

    @property
    def published(self) -> GpuNodeStatus | None:
        """The object as the server last showed it."""
        return self.watch.cache.get(self._node)

    def wake(self) -> None:
        """Something may have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled; `watch.run` has to run beside it."""
        await self.watch.synced()
        failures = 0
        beat_at = self._next_beat()
        while True:
            self._wake.clear()
            now = self._timing.monotonic()
            due = now >= beat_at
            wanted = self._compose(self._cordoned())
            if wanted is not None and (due or self._differs(wanted)):
                try:
                    await self._spend()
                    await self._write(self._compose(self._cordoned()) or wanted)
                except (KubernetesUnavailable, KubernetesRefused) as error:
                    failures += 1
                    self._note(error)
                    await self._timing.sleep(_BACKOFF.delay(failures, self._timing.random()))
                    continue
                failures = 0
                beat_at = self._next_beat()
                continue
            await self._sleep(beat_at - now)

    def _next_beat(self) -> float:
        return self._timing.monotonic() + self._heartbeat * (0.9 + 0.2 * self._timing.random())

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _spend(self) -> None:
        """Take a token, waiting for one if there is none."""
        now = self._timing.monotonic()
        self._tokens = min(float(BURST), self._tokens + (now - self._filled_at) / REFILL)
        self._filled_at = now
        if self._tokens < 1:
            await self._timing.sleep((1 - self._tokens) * REFILL)
            self._tokens, self._filled_at = 1.0, self._timing.monotonic()
        self._tokens -= 1

    def _cordoned(self) -> frozenset[int]:
        found = self.published
        return cordons(found.status.devices) if found else frozenset()

    def _differs(self, wanted: NodeGpus) -> bool:
        """Whether the server needs to be told.

        Until the watch has shown our last write, that write counts. If nobody has written since, what still
        differs is others' to keep (a holder that they added), and the same write again would change nothing.
        """
        found = self.published
        if wanted == self._written and (not self._seen or _version(found) == self._version):
            return False
        return found is None or _ours(found.status, wanted) != wanted

    async def _write(self, wanted: NodeGpus) -> None:
        try:
            written = await self._apply_status(wanted)
        except ObjectNotFound:
            await self._create()
            written = await self._apply_status(wanted)
        self.writes += 1
        self.error = ""
        self._written, self._version = wanted, int(written.metadata.resource_version)
        self._seen = _version(self.published) >= self._version

    async def _apply_status(self, wanted: NodeGpus) -> GpuNodeStatus:
        change = apply({"status": wanted}, manager=MANAGER)
        return await self._client.patch(GPU_NODE_STATUSES, self._node, change, subresource="status")

    async def _create(self) -> None:
        fields: dict[str, object] = {"spec": {"nodeName": self._node}}
        if owner := await self._owner():
            fields["metadata"] = {"ownerReferences": [owner]}
        await self._client.patch(GPU_NODE_STATUSES, self._node, apply(fields, manager=MANAGER))

    async def _owner(self) -> dict[str, str] | None:
        try:
            node = await self._client.get(NODES, self._node)
        except KubernetesRefused as error:
            _log.warning("the status will outlive its node", node=self._node, error=str(error))
            return None
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}

    def _on_object(self, changes: Sequence[CacheChange[GpuNodeStatus]]) -> None:
        self._seen = self._seen or any(_version(change.object) >= self._version for change in changes)
        self.wake()

    def _note(self, error: Exception) -> None:
        self.failures += 1
        if str(error) != self.error:
            _log.warning("status not published", node=self._node, error=str(error))
        self.error = str(error)


def _ours(found: NodeGpus, wanted: NodeGpus) -> NodeGpus:
    """What the server has, without the fields that are others' to set."""
    ids = {device.id for device in wanted.devices}
    devices = (_without_cordon(device) for device in found.devices if device.id in ids or not _bare(device))
    return NodeGpus(tuple(devices), found.total, found.free, found.unhealthy)


def _version(found: GpuNodeStatus | None) -> int:
    return int(found.metadata.resource_version or 0) if found else 0


def _without_cordon(device: DeviceStatus) -> DeviceStatus:
    return structs.replace(device, cordoned=False) if device.cordoned else device


def _bare(device: DeviceStatus) -> bool:
    """An entry of which nothing is left but an operator's cordon: its GPU is gone, the entry is not ours."""
    return device.uuid == "" and not device.in_use_by
