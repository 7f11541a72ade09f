"""Tell each change of a GPU's health as an event on the node's GpuNodeStatus, for `kubectl describe gns`.

The status says how a GPU is, why, and since when; events keep how it was before, and what mended it. They are a
courtesy: what can't be written is logged by the recorder, and what comes faster than it is written is dropped.
"""

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple

from gpufleet.gpus.health import HealthVerdict
from gpufleet.kubernetes import GPU_NODE_STATUSES, EventRecorder, KubeClient
from gpufleet.kubernetes.objects import ObjectReference
from gpufleet.model.device import Device
from gpufleet.model.node import Health

_WAITING = 256


class _Change(NamedTuple):
    device: Device
    before: HealthVerdict
    after: HealthVerdict


class HealthEvents:
    """Writes events as changes come; `uid` is that of the object, once it is there."""

    def __init__(self, client: KubeClient, node: str, uid: Callable[[], str]) -> None:
        self._node = node
        self._uid = uid
        self._recorder = EventRecorder(client, "gpufleet-agent", node)
        self._changes: asyncio.Queue[_Change] = asyncio.Queue(_WAITING)

    def note(self, device: Device, before: HealthVerdict, after: HealthVerdict) -> None:
        """A GPU's health is not what it was."""
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
            well = change.after.health is Health.HEALTHY
            type: Literal["Normal", "Warning"] = "Normal" if well else "Warning"
            reason = f"Gpu{change.after.health.value}"
            await self._recorder.record(about, reason, sentence(*change), type=type, action="HealthChanged")


def sentence(device: Device, before: HealthVerdict, after: HealthVerdict) -> str:
    """What happened, for a person."""
    if after.health is Health.HEALTHY:
        return f"GPU {device.index} is healthy again: {after.mended} (before: {before.reason})"
    return f"GPU {device.index}: {after.reason}"
