"""Record each change of a GPU's health as a Kubernetes event on the GpuNodeStatus, for `kubectl describe gns`.

The status has the present health with reason and time; events keep the history. They are best effort: failed
writes are logged by the recorder, and changes that come faster than they can be written are dropped.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple

from gpufleet.gpus.health import HealthVerdict
from gpufleet.kubernetes import GPU_NODE_STATUSES, EventRecorder, KubeClient
from gpufleet.kubernetes.objects import ObjectReference
from gpufleet.model.device import Device
from gpufleet.model.node import Health

_MAX_QUEUED = 256


class _Change(NamedTuple):
    device: Device
    before: HealthVerdict
    after: HealthVerdict


class HealthEvents:
    """Writes events; `uid` returns the uid of the GpuNodeStatus, or an empty string before it exists."""

    def __init__(self, client: KubeClient, node: str, uid: Callable[[], str]) -> None:
        self._node = node
        self._uid = uid
        self._recorder = EventRecorder(client, "gpufleet-agent", node)
        self._changes: asyncio.Queue[_Change] = asyncio.Queue(_MAX_QUEUED)

    def add(self, device: Device, before: HealthVerdict, after: HealthVerdict) -> None:
        """Queue a change of health."""
        if not self._changes.full():
            self._changes.put_nowait(_Change(device, before, after))

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            change = await self._changes.get()
            about = ObjectReference(
                api_version=GPU_NODE_STATUSES.api_version,
                kind=GPU_NODE_STATUSES.kind,
                name=self._node,
                uid=self._uid(),
            )
            healthy = change.after.health is Health.HEALTHY
            type: Literal["Normal", "Warning"] = "Normal" if healthy else "Warning"
            reason = f"Gpu{change.after.health.value}"
            await self._recorder.record(about, reason, message(*change), type=type, action="HealthChanged")


def message(device: Device, before: HealthVerdict, after: HealthVerdict) -> str:
    """Return the text of the event."""
    if after.health is Health.HEALTHY:
        return f"GPU {device.index} is healthy again: {after.recovery_reason} (before: {before.reason})"
    return f"GPU {device.index}: {after.reason}"
