"""Evict jobs that are held up by a straggler, if their pods ask for it.

A pod asks with the annotation `gpu.scheduling/evict-straggler-seconds`: once the server has named it as a straggler for so long,
it is evicted with its whole gang, and whatever created the pods starts the job again. Without the annotation, or without
`repair.server_url`, nothing is evicted. An evicted pod is gone, so nothing needs to be remembered.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

import aiohttp
import msgspec

from gpufleet.errors import GpufleetError, ServerUnavailable, connection_problem
from gpufleet.kubernetes.annotations import EVICT_STRAGGLER
from gpufleet.kubernetes.objects import Pod
from gpufleet.repair.cluster_state import ClusterState
from gpufleet.repair.views import PodView
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.runtime.response_body import BodyReader
from gpufleet.runtime.settings import RepairSettings
from gpufleet.scheduler.state.gang_identity import number

PERIOD = 30.0
_TIMEOUT = aiohttp.ClientTimeout(total=15.0)
_MAX_BYTES = 16 * 1024 * 1024
_log = get_logger("repair")


class _Straggler(msgspec.Struct):
    """The fields of the server's response that are read."""

    namespace: str
    pod: str
    since: datetime
    message: str


class _Envelope(msgspec.Struct):
    data: list[_Straggler]


class StragglerEvictions:
    """Reads the server's stragglers and evicts those that ask for it; `evict` evicts a pod for a reason."""

    def __init__(
        self,
        settings: RepairSettings,
        state: ClusterState,
        now: Callable[[], datetime],
        evict: Callable[[PodView, str], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._state = state
        self._now = now
        self._evict = evict
        self._warnings = RepeatedWarnings(_log)

    async def run(self) -> None:
        """Evict until cancelled; return at once without a server."""
        while self._settings.server_url:
            try:
                await self.evict()
            except (
                aiohttp.ClientError,
                OSError,
                TimeoutError,
                msgspec.MsgspecError,
                ServerUnavailable,
            ) as error:
                self._warnings.warn("server", "stragglers_not_read", error=connection_problem(error))
            except GpufleetError as error:
                self._warnings.warn("eviction", "straggler_not_evicted", error=str(error))
            await asyncio.sleep(PERIOD)

    async def evict(self) -> None:
        """Read the stragglers once, and evict the gangs of those that ask for it and may leave."""
        for straggler in await self._read():
            gang = self._gang_of(straggler)
            if gang and not self._state.budgets.allow([pod for pod, _ in gang]):
                key = f"{straggler.namespace}/{straggler.pod}"
                self._warnings.warn(key, "straggler_not_evicted", pod=key, error="a PodDisruptionBudget")
                continue
            for _, view in gang:
                await self._evict(view, f"straggler: {straggler.message}")

    def _gang_of(self, straggler: _Straggler) -> list[tuple[Pod, PodView]]:
        """Return the pods to evict; none if the pod does not ask for it or has more time."""
        pods = self._state.pod_index()
        found = next(
            (
                each
                for each in pods.views.values()
                if (each.namespace, each.name) == (straggler.namespace, straggler.pod)
            ),
            None,
        )
        after = number(pods.pods[found.uid].metadata.annotations, EVICT_STRAGGLER) if found else None
        if found is None or not after or (self._now() - straggler.since).total_seconds() < after:
            return []
        members = pods.by_gang.get(found.gang, (found,)) if found.gang is not None else (found,)
        return [(pods.pods[each.uid], each) for each in members if not each.terminating]

    async def _read(self) -> list[_Straggler]:
        url = self._settings.server_url.rstrip("/") + "/api/stragglers"
        query = {"cluster": self._settings.server_cluster} if self._settings.server_cluster else {}
        token = self._settings.server_token_file
        text = await asyncio.to_thread(token.read_text) if token is not None else ""
        headers = {"Authorization": f"Bearer {text.strip()}"} if text else {}
        async with (
            aiohttp.ClientSession(timeout=_TIMEOUT, raise_for_status=True) as session,
            session.get(url, params=query, headers=headers) as response,
        ):
            body = await BodyReader(_MAX_BYTES, ServerUnavailable).read(response)
        return msgspec.json.decode(body, type=_Envelope).data
