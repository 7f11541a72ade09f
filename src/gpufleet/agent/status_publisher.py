"""Publish the GpuNodeStatus of this node, immediately after a change and otherwise rarely.

The agent owns its fields by server-side apply, so that an operator's `cordoned` on the same entries stays. It
watches its own object (one watch of one name): a cordon changes `free`, and an object that was deleted or
edited is restored. A fleet of agents must not overload the API server, so

- nothing is written while the status is unchanged and the object equals it;
- a token bucket limits writes: the first changes go out immediately, then one every few seconds. A flapping
  GPU causes a few writes a minute, and the last state is always written;
- failures are retried with exponential backoff and jitter;
- the heartbeat, which corrects what a missed watch event may have hidden, has jitter too.

The Node owns the object, so it is garbage-collected with the Node. The agent itself deletes nothing.

Helm does not upgrade CRDs, so the CRD of the cluster may be older than the agent. Fields that it does not declare
are left out and tried again with the heartbeat.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import structs

from gpufleet.agent.node_status import cordoned_ids
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
"""Size of the token bucket."""
REFILL = 10.0
"""Seconds per token."""
URGENT = 2
"""Extra tokens for a GPU that has become unhealthy, so that changes of pods do not delay the news."""

Compose = Callable[[frozenset[int]], NodeGpus | None]
"""Returns the status, given which GPUs are cordoned; None while there is nothing to publish yet."""

_BACKOFF = Backoff(initial=0.5, maximum=60.0)
_UNDECLARED = re.compile(r"\.status\.(?:devices\[[^\]]*\]\.)?(\w+)[^:]*: field not declared in schema")
_log = get_logger("agent")


HEARTBEAT_S = 600.0
"""Seconds between checks of the status without a change: they only repair what a watch missed."""


class StatusPublisher:
    """Keeps the object of one node equal to what `compose` returns."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        compose: Compose,
        *,
        heartbeat: float = HEARTBEAT_S,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
    ) -> None:
        self.writes = 0
        self.failures = 0
        self.error = ""
        """Why the last write failed; empty if it succeeded."""
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
        self._undeclared: frozenset[str] = frozenset()
        """Fields that the CRD of the cluster does not have."""
        self._version = 0
        self._seen = False
        self._tokens, self._urgent_tokens = float(BURST), float(URGENT)
        self._filled_at = timing.monotonic()

    @property
    def published(self) -> GpuNodeStatus | None:
        """Return the object as last seen by the watch."""
        return self.watch.cache.get(self._node)

    def wake(self) -> None:
        """Compare the status with the object soon."""
        self._wake.set()

    async def run(self) -> None:
        """Publish until cancelled; `watch.run` must run as well."""
        await self.watch.synced()
        failures = 0
        beat_at = self._next_beat()
        while True:
            self._wake.clear()
            now = self._timing.monotonic()
            due = now >= beat_at
            if due:
                self._undeclared = frozenset()
            status = self._compose(self.cordoned())
            if status is not None and (due or self._differs(status)):
                delay = self._take_token(urgent=self._is_worse(status))
                if delay:
                    await self._sleep(delay)  # not longer than until the next change, which may be urgent
                    continue
                try:
                    await self._write(status)
                except (KubernetesUnavailable, KubernetesRefused) as error:
                    failures += 1
                    self._record_failure(error)
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

    def _is_worse(self, status: NodeGpus) -> bool:
        """Return whether a GPU has become unhealthy since the last write."""
        return self._written is not None and status.unhealthy > self._written.unhealthy

    def _take_token(self, urgent: bool) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = self._timing.monotonic()
        refilled = (now - self._filled_at) / REFILL
        self._tokens = min(float(BURST), self._tokens + refilled)
        self._urgent_tokens = min(float(URGENT), self._urgent_tokens + refilled)
        self._filled_at = now
        if urgent and self._tokens < 1 <= self._urgent_tokens:
            self._urgent_tokens -= 1
            return 0.0
        if self._tokens < 1:
            return (1 - self._tokens) * REFILL
        self._tokens -= 1
        return 0.0

    def cordoned(self) -> frozenset[int]:
        """Return the ids of the GPUs that an operator has cordoned."""
        found = self.published
        return cordoned_ids(found.status.devices) if found else frozenset()

    def _differs(self, status: NodeGpus) -> bool:
        """Return whether a write is needed.

        Until the watch has shown our last write, that write counts. If the object was not written since, the
        remaining differences are fields of other owners, and the same write would change nothing.
        """
        found = self.published
        if status == self._written and (not self._seen or _version(found) == self._version):
            return False
        return found is None or _ours(found.status, status) != status

    async def _write(self, status: NodeGpus) -> None:
        try:
            written = await self._apply_status(status)
        except ObjectNotFound:
            await self._create()
            written = await self._apply_status(status)
        self.writes += 1
        self.error = ""
        self._written, self._version = status, int(written.metadata.resource_version)
        self._seen = _version(self.published) >= self._version

    async def _apply_status(self, status: NodeGpus) -> GpuNodeStatus:
        while True:
            change = apply({"status": declared_fields(status, self._undeclared)}, manager=MANAGER)
            try:
                return await self._client.patch(GPU_NODE_STATUSES, self._node, change, subresource="status")
            except (KubernetesUnavailable, KubernetesRefused) as error:
                undeclared = undeclared_fields(str(error)) - self._undeclared
                if not undeclared:
                    raise
                self._undeclared |= undeclared
                _log.warning(
                    "fields_not_published",
                    node=self._node,
                    fields=sorted(undeclared),
                    remedy="apply the CRDs of this version",
                )

    async def _create(self) -> None:
        fields: dict[str, object] = {"spec": {"nodeName": self._node}}
        if owner := await self._owner():
            fields["metadata"] = {"ownerReferences": [owner]}
        await self._client.patch(GPU_NODE_STATUSES, self._node, apply(fields, manager=MANAGER))

    async def _owner(self) -> dict[str, str] | None:
        try:
            node = await self._client.get(NODES, self._node)
        except KubernetesRefused as error:
            _log.warning("owner_reference_not_set", node=self._node, error=str(error))
            return None
        return {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": node.metadata.uid}

    def _on_object(self, changes: Sequence[CacheChange[GpuNodeStatus]]) -> None:
        self._seen = self._seen or any(_version(change.object) >= self._version for change in changes)
        self.wake()

    def _record_failure(self, error: Exception) -> None:
        self.failures += 1
        if str(error) != self.error:
            _log.warning("status_not_published", node=self._node, error=str(error))
        self.error = str(error)


def undeclared_fields(error: str) -> frozenset[str]:
    """Return the fields of the status that the API server rejects because its CRD does not declare them."""
    return frozenset(_UNDECLARED.findall(error))


def declared_fields(status: NodeGpus, undeclared: frozenset[str]) -> dict[str, Any]:
    """Return the fields of a status except some, in the status itself and in its devices."""
    fields: dict[str, Any] = msgspec.to_builtins(status)
    kept = {name: value for name, value in fields.items() if name not in undeclared}
    if "devices" in kept:
        kept["devices"] = [
            {name: value for name, value in device.items() if name not in undeclared}
            for device in kept["devices"]
        ]
    return kept


def _ours(found: NodeGpus, status: NodeGpus) -> NodeGpus:
    """Return the status in the object, without fields of other owners."""
    ids = {device.id for device in status.devices}
    devices = (
        _without_cordon(device) for device in found.devices if device.id in ids or not _only_cordon(device)
    )
    return structs.replace(found, devices=tuple(devices))


def _version(found: GpuNodeStatus | None) -> int:
    return int(found.metadata.resource_version or 0) if found else 0


def _without_cordon(device: DeviceStatus) -> DeviceStatus:
    return structs.replace(device, cordoned=False) if device.cordoned else device


def _only_cordon(device: DeviceStatus) -> bool:
    """Return whether only an operator's cordon is left of the entry: its GPU is gone."""
    return device.uuid == "" and not device.in_use_by
