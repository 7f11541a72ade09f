"""The simulation of the real planner with GpuQueues: evicted units terminate within the grace period and come back."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from msgspec import convert, structs
from tests.scheduler.simulation import START, Simulation, Unit, number_of

from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.crds.gpu_queue import GpuQueue, QueueSpec
from gpufleet.kubernetes.objects import ObjectMeta, Pod
from gpufleet.queueing.shares.quota import Level
from gpufleet.scheduler.planning.plan import Decided, Placed

GRACE = 30.0
"""Seconds that evicted pods take to terminate."""


@dataclass
class QueueSimulation(Simulation):
    """A cluster with queues; namespaces are named like their queues."""

    queues: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    used: dict[str, float] = field(default_factory=dict)
    """GPU-seconds by namespace."""
    evictions: list[Decided] = field(default_factory=list)
    coming_back: dict[int, set[str]] = field(default_factory=dict)
    """Evicted units with the UIDs of their pods that still run."""
    first_runs: dict[int, int] = field(default_factory=dict)
    """Units that go on with an evicted one, and that one's first number."""
    comes_back: bool = True
    refuses: bool = False
    """Whether the API server refuses evictions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, spec in self.queues.items():
            self.put_queue(name, **spec)

    def put_queue(self, name: str, **spec: Any) -> None:
        """Create or change a queue."""
        described = convert({"namespaces": [name], **spec}, QueueSpec)
        meta = ObjectMeta(name=name, uid=name, creation_timestamp=START)
        self.scheduler.gpu_queues.put(GpuQueue(metadata=meta, spec=described))

    def step(self, arrivals: Iterable[Unit], until: float) -> None:
        """Advance to the next end or to `until`, and let these units arrive then."""
        then = min([*(end for end in self.ends.values()), until])
        for held in self.running():
            self.used[held[0]] = self.used.get(held[0], 0.0) + held[1] * (then - self.now)
        self.now = then
        for uid in [uid for uid, end in self.ends.items() if end <= self.now]:
            self._end(uid)
        for number, uids in list(self.coming_back.items()):
            if not uids & self.ends.keys():
                del self.coming_back[number]
                if self.comes_back:
                    self.first_runs[len(self.units)] = self.first_runs.get(number, number)
                    self.arrive(replace(self.units[number], arrives=int(self.now)))
        for unit in arrivals:
            self.arrive(unit)
        self.plan()

    def running(self) -> list[tuple[str, float]]:
        """Return the namespace and the GPUs of each running pod."""
        pods = self.scheduler.ledger.pods
        return [
            (pods[uid].metadata.namespace, float(self.units[number_of(pods[uid])].gpus)) for uid in self.ends
        ]

    def levels(self) -> dict[str, Level]:
        """Return whose GPUs each running pod has, by UID."""
        queues = self.scheduler.gpu_queues
        names = {queues.quotas.department(name) for name in (*queues.objects, "default")}
        return {uid: each.level for name in names for uid, each in queues.standings(name).items()}

    def waiting(self) -> list[tuple[str, int, float]]:
        """Return queue, thousandths and arrival of each waiting unit."""
        return [
            (
                entry.pod.metadata.namespace,
                entry.milli,
                (entry.pod.metadata.creation_timestamp or START).timestamp(),
            )
            for entry in self.scheduler.queue
        ]

    def guaranteed_left(self, name: str) -> int:
        """Return how much of its guarantee a queue does not use, in thousandths."""
        queues = self.scheduler.gpu_queues
        return queues.quotas.get(name).guaranteed - sum(queues.used().get(name, {}).values())

    def _act(self) -> None:
        for each in self.scheduler._decisions.take():
            if isinstance(each.decision, Placed):
                for pod in each.pods:
                    self._bind(pod, each.decision.members[pod.metadata.uid])
            elif each.victims:
                self.evictions.append(each)
                self.on_evict(each)
                for victim in each.victims if not self.refuses else ():
                    uid = victim.metadata.uid
                    if uid in self.ends:
                        self.terminate(victim)
                        self.coming_back.setdefault(number_of(victim), set()).add(uid)

    def terminate(self, pod: Pod) -> None:
        """Let a pod terminate within the grace period, as an eviction does."""
        uid = pod.metadata.uid
        self.ends[uid] = min(self.ends[uid], self.now + GRACE)
        known = self.scheduler.ledger.pods[uid]
        gone_at = START + timedelta(seconds=self.now + GRACE)
        meta = structs.replace(known.metadata, deletion_timestamp=gone_at)
        terminating = self._versioned(structs.replace(known, metadata=meta))
        self.scheduler.watch_events.on_pods([CacheChange(known, terminating)])

    on_evict: Callable[[Decided], None] = lambda decided: None
