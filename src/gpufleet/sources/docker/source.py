"""Watch a container engine and update the fleet.

The source lists the containers periodically, and immediately when the engine reports a change. It inspects
a container when it is new or changed. A refresh that fails changes nothing: the fleet becomes older, not
wrong. If the engine cannot inspect one container (a plugin hangs, its disk is gone), the container keeps
its last known state and is retried after a while.

The engine knows little about the GPUs of its machine. Where another source knows them (the local driver,
an exporter), that source takes precedence, and uuids in containers are mapped to its indices.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime

import msgspec

from gpufleet.errors import ContainersUnavailable
from gpufleet.fleet.state import Fleet
from gpufleet.model.node import FleetGpu, FleetNode
from gpufleet.model.workload import FleetPod, Status
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.runtime.settings import DockerSettings
from gpufleet.sources.docker.container_gpus import (
    VENDORS,
    GpuSelection,
    gpu_selection,
    min_gpu_count,
    resolve,
)
from gpufleet.sources.docker.engine import TIMEOUT_S, Container, Engine, EngineInfo, RequestFailed
from gpufleet.sources.polling import Polling, replace_pods

REFRESH_S = 30.0
"""Seconds between lists of all containers; changes are seen at once by events."""
_MAX_CONCURRENT = 8
_DEBOUNCE = 0.2
"""Seconds to wait after a change, so that a burst of changes causes one refresh."""
_MAX_CHANGED = 10_000
"""Changed containers that are inspected even if their listed state is the same."""
_RETRY = 60.0
"""Seconds until a container that could not be inspected is retried, unless it changes before."""
_WAITING = {"created"}
_RUNNING = {"running", "paused", "restarting", "stopping"}
_Inspected = tuple[str, Container, GpuSelection]
"""The listed state of a container, its details and its GPUs."""
_log = get_logger("sources.docker")


class DockerSource:
    """Keep the fleet in sync with a container engine; `run` it as a task."""

    name = "docker"

    def __init__(
        self,
        settings: DockerSettings,
        fleet: Fleet,
        *,
        clock: Callable[[], float] = time.time,
        timeout: float = TIMEOUT_S,
    ) -> None:
        self.polling = Polling(self.name, fleet.cluster, clock)
        self._settings = settings
        self._fleet = fleet
        self._clock = clock
        self._engine = Engine(settings, timeout=timeout)
        self._inspected: dict[str, _Inspected] = {}
        self._changed_ids: set[str] = set()
        """Containers with an event since their inspection: a restart does not change the listed state."""
        self._retry_at: dict[str, float] = {}
        """Containers that could not be inspected, and when to retry each."""
        self._warnings = RepeatedWarnings(_log)
        self._pods: dict[str, FleetPod] = {}
        self._node = ""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watch the engine until cancelled."""
        watching = asyncio.create_task(self._watch_events())
        try:
            while True:
                self._changed.clear()
                await self.polling.run_once(self.refresh)
                with suppress(TimeoutError):
                    # Not wait_for: in Python 3.11 it may swallow a cancellation that arrives with the change.
                    async with asyncio.timeout(REFRESH_S):
                        await self._changed.wait()
                    await asyncio.sleep(_DEBOUNCE)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            await self._engine.close()

    def summary(self) -> str:
        """Describe in a few words what the source sees."""
        return f"{len(self._pods)} GPU containers on {self._node}"

    async def refresh(self) -> None:
        """List the containers once and update the fleet."""
        changed, self._changed_ids = self._changed_ids, set()
        try:
            await self._refresh(changed)
        except ContainersUnavailable:
            self._changed_ids |= changed
            raise

    async def _refresh(self, changed: set[str]) -> None:
        info = await self._engine.info()
        rows = await self._engine.containers()
        vendors = VENDORS if await self._engine.is_podman() else {info.default_runtime} & VENDORS
        slots = asyncio.Semaphore(_MAX_CONCURRENT)
        succeeded, failed = set[str](), dict[str, RequestFailed]()

        async def inspect(id: str, state: str) -> tuple[str, _Inspected | None]:
            known, retry_at = self._inspected.get(id), self._retry_at.get(id)
            same = known is not None and known[0] == state
            if id not in changed and (same if retry_at is None else self._clock() < retry_at):
                return id, known
            async with slots:
                try:
                    container = await self._engine.container(id)
                except RequestFailed as error:
                    failed[id] = error
                    return id, known
            succeeded.add(id)
            return id, (state, container, gpu_selection(container, vendors)) if container else None

        inspected = await asyncio.gather(*(inspect(row.id, row.state) for row in rows))
        if len(failed) > 1 and not succeeded:
            raise next(iter(failed.values()))
        self._schedule_retries(failed, succeeded, {row.id for row in rows})
        self._inspected = {id: details for id, details in inspected if details is not None}
        self._node = self._settings.node or info.name or "docker"
        self._put_node(info)
        self._put_pods()

    def _schedule_retries(
        self, failed: Mapping[str, RequestFailed], succeeded: set[str], listed: set[str]
    ) -> None:
        for id, error in failed.items():
            self._warnings.warn(
                id, "container_not_inspected", container=id[:12], node=self._node, error=str(error)
            )
        for id in succeeded | (self._retry_at.keys() - listed):
            self._warnings.clear(id)
        waiting = {id: at for id, at in self._retry_at.items() if id in listed - succeeded}
        self._retry_at = {**waiting, **dict.fromkeys(failed, self._clock() + _RETRY)}

    async def close(self) -> None:
        """Close the connections to the engine."""
        await self._engine.close()

    async def _watch_events(self) -> None:
        while True:
            with suppress(ContainersUnavailable):
                async for id in self._engine.changes():
                    if len(self._changed_ids) < _MAX_CHANGED:
                        self._changed_ids.add(id)
                    self._changed.set()
            await asyncio.sleep(min(5.0, REFRESH_S))

    def _put_node(self, info: EngineInfo) -> None:
        view = self._fleet.views().get(self._node)
        if view is not None and view.node.source != self.name:
            return
        found = {d.id for d in info.discovered_devices or () if d.id.rpartition("/gpu=")[2].isdigit()}
        selections = (selection for _, _, selection in self._inspected.values())
        count = self._settings.gpus or len(found) or min_gpu_count(selections)
        count = max(count, view.node.gpu_count if view else 0)
        if count and (view is None or view.node.gpu_count != count):
            self._fleet.put_node(
                FleetNode(name=self._node, source=self.name, gpu_count=count, created=self._clock())
            )

    def _put_pods(self) -> None:
        view = self._fleet.views().get(self._node)
        gpus = view.gpus if view else ()
        pods = [
            _pod(container, selection, self._node, gpus)
            for _, container, selection in self._inspected.values()
            if selection
        ]
        self._pods = replace_pods(self._fleet, self._pods, _with_shares(pods), self._clock())


def status_of(container: Container) -> Status:
    """Return the status of a container in the terms of the API."""
    state = container.state
    if state.status in _WAITING:
        return Status.PENDING
    if state.status in _RUNNING:
        return Status.RUNNING
    if state.status in ("exited", "stopped", "removing"):
        return Status.COMPLETED if state.exit_code == 0 else Status.FAILED
    return Status.FAILED if state.status == "dead" else Status.UNKNOWN


def _pod(container: Container, selection: GpuSelection, node: str, gpus: Sequence[FleetGpu]) -> FleetPod:
    labels = container.config.labels or {}
    phase = status_of(container)
    resolved = resolve(selection, gpus)
    started = parse_time(container.state.started_at)
    return FleetPod(
        uid=container.id,
        name=container.name.lstrip("/") or container.id[:12],
        namespace=labels.get("com.docker.compose.project") or "default",
        kind="Container",
        api_version="docker",
        source="docker",
        node="" if phase is Status.PENDING else node,
        phase=phase,
        labels=labels,
        annotations={"docker/image": container.config.image},
        gpus=resolved.gpus,
        held=resolved.indices,
        alias=container.id,
        created=parse_time(container.created),
        bound=started,
        started=started,
        ended=parse_time(container.state.finished_at) if phase.ended else 0.0,
    )


def _with_shares(pods: list[FleetPod]) -> list[FleetPod]:
    """Set the share of each pod whose GPUs other pods use too."""
    live = [pod for pod in pods if pod.holds]
    shared = []
    for pod in pods:
        parts = [1 / max(1, sum(index in other.held for other in live)) for index in pod.held]
        share = round(sum(parts) / len(parts), 6) if parts and pod.holds else 1.0
        shared.append(msgspec.structs.replace(pod, share=share))
    return shared


def parse_time(text: str) -> float:
    """Convert a time of the engine to Unix seconds; 0 for none, which the engine writes as the year 1."""
    if not text or text.startswith("0001-"):
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
