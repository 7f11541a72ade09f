"""A slow reference fleet: plain dictionaries and loops over everything.

Shares no code with `gpufleet.fleet`; a test drives both with the same events and compares.
"""

import math
from dataclasses import dataclass, field

from gpufleet.model.node import FleetNode, Health, NodeDevices
from gpufleet.model.workload import FleetOwner, FleetPod, Status


@dataclass
class Reference:
    nodes: dict[str, FleetNode] = field(default_factory=dict)
    devices: dict[str, NodeDevices] = field(default_factory=dict)
    leases: dict[str, dict[int, tuple[str, ...]]] = field(default_factory=dict)
    owners: dict[str, FleetOwner] = field(default_factory=dict)
    pods: dict[str, FleetPod] = field(default_factory=dict)
    utilization: dict[tuple[str, int], float] = field(default_factory=dict)

    def holding_on(self, node: str) -> list[FleetPod]:
        return [
            p
            for p in self.pods.values()
            if p.node == node and p.gpus and p.phase not in (Status.COMPLETED, Status.FAILED)
        ]

    def total(self, node: str) -> int:
        devices = self.devices.get(node)
        return max(devices.total, len(devices.gpus)) if devices else self.nodes[node].gpu_count

    def named(self, pod: FleetPod) -> tuple[int, ...]:
        if pod.held:
            return pod.held
        leased = [i for i, uids in sorted(self.leases.get(pod.node, {}).items()) if pod.uid in uids]
        if leased:
            return tuple(leased[: pod.gpus])
        devices = self.devices.get(pod.node)
        seen = [gpu.index for gpu in (devices.gpus if devices else ()) if pod.uid in gpu.in_use_by]
        if not seen and self.holding_on(pod.node) == [pod] and pod.node in self.nodes:
            everyone = [gpu.index for gpu in devices.gpus] if devices else range(self.total(pod.node))
            if pod.gpus == self.total(pod.node) == len(everyone):
                return tuple(everyone)
        return tuple(sorted(seen)[: pod.gpus])

    def allocated(self, node: str) -> int:
        indices: set[int] = set()
        rest = 0.0
        for pod in self.holding_on(node):
            named = self.named(pod)
            indices |= set(named)
            rest += max(0, pod.gpus - len(named)) * pod.share
        return min(self.total(node), len(indices) + math.ceil(round(rest, 6)))

    def state(self, node: str) -> str:
        devices = self.devices.get(node)
        unhealthy = any(gpu.health is Health.UNHEALTHY for gpu in (devices.gpus if devices else ()))
        if not self.nodes[node].ready or self.nodes[node].fault or unhealthy:
            return "faulty"
        if self.allocated(node) == 0:
            return "idle"
        return "busy" if self.allocated(node) >= self.total(node) else "partial"

    def states(self) -> dict[str, int]:
        counts = {"faulty": 0, "idle": 0, "partial": 0, "busy": 0}
        for node in self.nodes:
            if self.total(node):
                counts[self.state(node)] += 1
        return counts

    def mean_utilization(self) -> float | None:
        values = []
        for node in self.nodes:
            total = self.total(node)
            if not total:
                continue
            devices = self.devices.get(node)
            indices = {gpu.index for gpu in devices.gpus} if devices else set(range(total))
            held = {i for pod in self.holding_on(node) for i in self.named(pod)}
            if self.allocated(node) == total:
                held = indices
            values += [
                self.utilization[node, i] for i in held if (node, i) in self.utilization and i in indices
            ]
        return sum(values) / len(values) / 100 if values else None

    def above(self, uid: str) -> str | None:
        found = self.pods.get(uid) or self.owners.get(uid)
        reference = found.owner if isinstance(found, FleetPod) else found.parent if found else None
        if found is None or reference is None:
            return None
        owner = self.owners.get(reference.uid)
        named = owner and (owner.kind, owner.name) == (reference.kind, reference.name)
        if owner and named and owner.namespace in ("", found.namespace):
            return owner.uid
        return f"{reference.uid}@{found.namespace}"

    def root(self, uid: str) -> str:
        path = [uid]
        while (above := self.above(path[-1])) is not None:
            if above in path:
                return uid
            path.append(above)
        return path[-1]

    def consumers(self) -> list[tuple[str, int]]:
        gpus: dict[str, int] = {}
        for pod in self.pods.values():
            if pod.gpus and pod.node and pod.phase not in (Status.COMPLETED, Status.FAILED):
                root = self.root(pod.uid)
                gpus[root] = gpus.get(root, 0) + pod.gpus
        return sorted(gpus.items())
