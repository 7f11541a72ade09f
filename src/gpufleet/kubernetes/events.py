"""Events on objects, said once.

What is repeated is counted on the first event (its series) and written at most every half
minute, so that a pod that waits for an hour has one line in `kubectl describe`, not
thousands. Events are a courtesy: one that can't be written is logged, and work goes on.
"""

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import msgspec

from gpufleet.errors import GpufleetError
from gpufleet.kubernetes.client import patch
from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.errors import ObjectNotFound
from gpufleet.kubernetes.client.resources import EVENTS
from gpufleet.kubernetes.objects import Event, ObjectMeta, ObjectReference, micro_time
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")

QUIET = 30.0
"""Seconds between two writes of the same event."""

_REMEMBERED = 4096
_LONGEST_NOTE = 1024

_Key = tuple[str, str, str, str, str]


@dataclass
class _Said:
    name: str
    count: int
    written_at: float


class EventRecorder:
    """Writes events in the name of one component."""

    def __init__(self, client: KubeClient, component: str, instance: str) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._said: OrderedDict[_Key, _Said] = OrderedDict()

    async def say(
        self,
        about: ObjectReference,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
        action: str = "Scheduling",
    ) -> None:
        """Write the event, or count it if it was said before."""
        key = (about.kind, about.namespace, about.uid or about.name, reason, note)
        said = self._said.get(key)
        now = self._client.timing.monotonic()
        if said is not None:
            said.count += 1
            self._said.move_to_end(key)
            if now - said.written_at < QUIET:
                return
        try:
            if said is None or not await self._count(about, said):
                self._said[key] = await self._write(about, reason, note, type, action)
                if len(self._said) > _REMEMBERED:
                    self._said.popitem(last=False)
            else:
                said.written_at = now
        except GpufleetError as error:
            _log.warning(
                "event not written", reason=reason, about=f"{about.kind} {about.name}", error=str(error)
            )

    def _now(self) -> datetime:
        return micro_time(self._client.timing.now())

    async def _write(self, about: ObjectReference, reason: str, note: str, type: str, action: str) -> _Said:
        event = Event(
            metadata=ObjectMeta(generate_name=f"{about.name[:200]}-", namespace=about.namespace or "default"),
            event_time=self._now(),
            reporting_controller=self._component,
            reporting_instance=self._instance[:128],
            action=action,
            reason=reason,
            note=note if len(note) <= _LONGEST_NOTE else note[: _LONGEST_NOTE - 1] + "…",
            type=type,
            regarding=about,
        )
        written = await self._client.create(EVENTS, event)
        return _Said(written.metadata.name, 1, self._client.timing.monotonic())

    async def _count(self, about: ObjectReference, said: _Said) -> bool:
        series = {"count": said.count, "lastObservedTime": msgspec.to_builtins(self._now())}
        try:
            await self._client.patch(
                EVENTS, said.name, patch.merge({"series": series}), about.namespace or "default"
            )
        except ObjectNotFound:
            # Events expire after an hour.
            return False
        return True
