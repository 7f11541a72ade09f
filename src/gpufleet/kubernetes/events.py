"""Kubernetes Events, with repetitions counted in the event's series.

A repeated event only raises the count of the first one, written at most every half minute, so a
pod that waits for an hour has one line in `kubectl describe` and not thousands. Events are best
effort: a failed write is logged and ignored.
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

WRITE_INTERVAL = 30.0
"""Seconds between two writes of the same event."""

_MAX_REMEMBERED = 4096
_MAX_NOTE_LENGTH = 1024

_Key = tuple[str, str, str, str, str]


@dataclass
class _WrittenEvent:
    name: str
    count: int
    written_at: float


class EventRecorder:
    """Writes events on behalf of one component."""

    def __init__(self, client: KubeClient, component: str, instance: str) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._written: OrderedDict[_Key, _WrittenEvent] = OrderedDict()

    async def record(
        self,
        regarding: ObjectReference,
        reason: str,
        note: str,
        *,
        type: Literal["Normal", "Warning"] = "Normal",
        action: str = "Scheduling",
    ) -> None:
        """Write the event, or count it if it repeats an earlier one."""
        key = (regarding.kind, regarding.namespace, regarding.uid or regarding.name, reason, note)
        earlier = self._written.get(key)
        now = self._client.timing.monotonic()
        if earlier is not None:
            earlier.count += 1
            self._written.move_to_end(key)
            if now - earlier.written_at < WRITE_INTERVAL:
                return
        try:
            if earlier is None or not await self._update_series(regarding, earlier):
                self._written[key] = await self._create(regarding, reason, note, type, action)
                if len(self._written) > _MAX_REMEMBERED:
                    self._written.popitem(last=False)
            else:
                earlier.written_at = now
        except GpufleetError as error:
            _log.warning(
                "event_not_written", reason=reason, kind=regarding.kind, name=regarding.name, error=str(error)
            )

    def _now(self) -> datetime:
        return micro_time(self._client.timing.now())

    async def _create(
        self, regarding: ObjectReference, reason: str, note: str, type: str, action: str
    ) -> _WrittenEvent:
        event = Event(
            metadata=ObjectMeta(
                generate_name=f"{regarding.name[:200]}-", namespace=regarding.namespace or "default"
            ),
            event_time=self._now(),
            reporting_controller=self._component,
            reporting_instance=self._instance[:128],
            action=action,
            reason=reason,
            note=note if len(note) <= _MAX_NOTE_LENGTH else note[: _MAX_NOTE_LENGTH - 1] + "…",
            type=type,
            regarding=regarding,
        )
        created = await self._client.create(EVENTS, event)
        return _WrittenEvent(created.metadata.name, 1, self._client.timing.monotonic())

    async def _update_series(self, regarding: ObjectReference, earlier: _WrittenEvent) -> bool:
        """Write the count; return False if the event has expired, which happens after an hour."""
        series = {"count": earlier.count, "lastObservedTime": msgspec.to_builtins(self._now())}
        try:
            await self._client.patch(
                EVENTS, earlier.name, patch.merge({"series": series}), regarding.namespace or "default"
            )
        except ObjectNotFound:
            return False
        return True
