"""Follows a container engine and tells the fleet.

The engine is listed every so often, and at once when it tells of a change. Each container is
looked at closely when it is new or its state changed. A turn that fails passes nothing on: the
picture gets older, not wrong. A container of which alone the engine can't tell (a plugin hangs, its
disk is gone) stays as it was known, and is asked for again after a while.

The engine knows little of its machine's GPUs: where something else does (this machine's own
driver, an exporter), that is believed, and uuids in containers are turned into its indices.
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
from gpufleet.sources.docker.container_gpus import VENDORS, GpuClaimOfContainer, claim_of, highest, holding
from gpufleet.sources.docker.engine import Container, Engine, Info, NoAnswer
from gpufleet.sources.polling import Polling

_AT_ONCE = 8
_SETTLING = 0.2
"""Seconds to wait after a change, so that a flurry of them is one turn."""
_ASK_AGAIN = 60.0
"""Seconds after which a container that the engine could not tell of is asked for again, if nothing happens to it."""
_WAITING = {"created"}
_RUNNING = {"running", "paused", "restarting", "stopping"}
_Seen = tuple[str, Container, GpuClaimOfContainer]
_log = get_logger("sources.docker")


class DockerSource:
    """Keeps a fleet as a container engine shows it; `run` it in a task of its own."""

    name = "docker"

    def __init__(
        self, settings: DockerSettings, fleet: Fleet, *, clock: Callable[[], float] = time.time
    ) -> None:
        self.polling = Polling(f"docker of {fleet.cluster}", clock)
        self._settings = settings
        self._fleet = fleet
        self._clock = clock
        self._engine = Engine(settings)
        self._seen: dict[str, _Seen] = {}
        self._told: set[str] = set()
        """Containers of which the engine told something since they were looked at: one may have been restarted."""
        self._silent: dict[str, float] = {}
        """Containers that the engine could not tell of, and when each is asked for again."""
        self._warnings = RepeatedWarnings(_log)
        self._pods: dict[str, FleetPod] = {}
        self._node = ""
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Follow the engine until cancelled."""
        listening = asyncio.create_task(self._listen())
        try:
            while True:
                self._changed.clear()
                await self.polling.look(self.look)
                with suppress(TimeoutError):
                    # Not wait_for: in Python 3.11 it forgets a cancellation that comes with the change.
                    async with asyncio.timeout(self._settings.refresh):
                        await self._changed.wait()
                    await asyncio.sleep(_SETTLING)
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
            await self._engine.close()

    def told(self) -> str:
        """What is followed, in a few words."""
        return f"{len(self._pods)} GPU containers on {self._node}"

    async def look(self) -> None:
        """Take one turn."""
        told, self._told = self._told, set()
        try:
            await self._look(told)
        except ContainersUnavailable:
            self._told |= told
            raise

    async def _look(self, told: set[str]) -> None:
        info = await self._engine.info()
        rows = await self._engine.containers()
        believed = VENDORS if await self._engine.is_podman() else {info.default_runtime} & VENDORS
        turns = asyncio.Semaphore(_AT_ONCE)
        answered, silent = set[str](), dict[str, NoAnswer]()

        async def inspect(id: str, state: str) -> tuple[str, _Seen | None]:
            known, again = self._seen.get(id), self._silent.get(id)
            same = known is not None and known[0] == state
            if id not in told and (same if again is None else self._clock() < again):
                return id, known
            async with turns:
                try:
                    container = await self._engine.container(id)
                except NoAnswer as error:
                    silent[id] = error
                    return id, known
            answered.add(id)
            return id, (state, container, claim_of(container, believed)) if container else None

        looked = await asyncio.gather(*(inspect(row.id, row.state) for row in rows))
        if len(silent) > 1 and not answered:
            raise next(iter(silent.values()))
        self._leave_aside(silent, answered, {row.id for row in rows})
        self._seen = {id: seen for id, seen in looked if seen is not None}
        self._node = self._settings.node or info.name or "docker"
        self._tell_node(info)
        self._tell_pods()

    def _leave_aside(self, silent: Mapping[str, NoAnswer], answered: set[str], there: set[str]) -> None:
        for id, error in silent.items():
            self._warnings.warn(
                id, "container left as it was known", container=id[:12], node=self._node, error=str(error)
            )
        for id in answered | (self._silent.keys() - there):
            self._warnings.clear(id)
        again = self._clock() + _ASK_AGAIN
        kept = {id: at for id, at in self._silent.items() if id in there - answered}
        self._silent = {**kept, **dict.fromkeys(silent, again)}

    async def close(self) -> None:
        """Let go of the engine."""
        await self._engine.close()

    async def _listen(self) -> None:
        while True:
            with suppress(ContainersUnavailable):
                async for id in self._engine.changes():
                    self._told.add(id)
                    self._changed.set()
            await asyncio.sleep(min(5.0, self._settings.refresh))

    def _tell_node(self, info: Info) -> None:
        view = self._fleet.views().get(self._node)
        if view is not None and view.node.source != self.name:
            return
        found = {d.id for d in info.discovered_devices or () if d.id.rpartition("/gpu=")[2].isdigit()}
        count = self._settings.gpus or len(found) or highest(claim for _, _, claim in self._seen.values())
        count = max(count, view.node.gpu_count if view else 0)
        if count and (view is None or view.node.gpu_count != count):
            self._fleet.put_node(
                FleetNode(name=self._node, source=self.name, gpu_count=count, created=self._clock())
            )

    def _tell_pods(self) -> None:
        view = self._fleet.views().get(self._node)
        gpus = view.gpus if view else ()
        pods = [
            _pod(container, claim, self._node, gpus) for _, container, claim in self._seen.values() if claim
        ]
        fresh = {pod.uid: pod for pod in _shared(pods)}
        for uid in self._pods.keys() - fresh.keys():
            self._fleet.drop_pod(uid, self._clock())
        for uid, pod in fresh.items():
            if self._pods.get(uid) != pod:
                self._fleet.put_pod(pod)
        self._pods = fresh


def status_of(container: Container) -> Status:
    """How a container is doing, in the words of the contract."""
    state = container.state
    if state.status in _WAITING:
        return Status.PENDING
    if state.status in _RUNNING:
        return Status.RUNNING
    if state.status in ("exited", "stopped", "removing"):
        return Status.COMPLETED if state.exit_code == 0 else Status.FAILED
    return Status.FAILED if state.status == "dead" else Status.UNKNOWN


def _pod(container: Container, claim: GpuClaimOfContainer, node: str, gpus: Sequence[FleetGpu]) -> FleetPod:
    labels = container.config.labels or {}
    phase = status_of(container)
    had = holding(claim, gpus)
    started = moment(container.state.started_at)
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
        gpus=had.gpus,
        held=had.indices,
        alias=container.id,
        created=moment(container.created),
        bound=started,
        started=started,
        ended=moment(container.state.finished_at) if phase.ended else 0.0,
    )


def _shared(pods: list[FleetPod]) -> list[FleetPod]:
    """The pods with their share of GPUs that several of them are on."""
    live = [pod for pod in pods if pod.holds]
    shared = []
    for pod in pods:
        parts = [1 / max(1, sum(index in other.held for other in live)) for index in pod.held]
        share = round(sum(parts) / len(parts), 6) if parts and pod.holds else 1.0
        shared.append(msgspec.structs.replace(pod, share=share))
    return shared


def moment(text: str) -> float:
    """A time of the engine in Unix seconds; 0 for none. Its years start at 1 where nothing happened."""
    if not text or text.startswith("0001-"):
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
