"""Which GPUs the runs of a simulation hold, for the reports of the agents and the leases of the scheduler."""

from collections.abc import Mapping, Sequence

from gpufleet.demo.objects.identities import Json, Phase, pods_of, uses_claims
from gpufleet.demo.objects.leases import Held, gpu_lease, held_by
from gpufleet.demo.simulation.hardware import Hardware
from gpufleet.demo.simulation.timeline import Run
from gpufleet.demo.user_pods import UserPods

HOLDING = (Phase.STARTING, Phase.RUNNING)
"""Phases in which a run holds its GPUs."""

Gpu = tuple[int, int]
"""Node number and GPU index."""


class Occupancy:
    """The holders of each GPU, and the leases that were written for them."""

    def __init__(self, hardware: Hardware, lease_namespace: str, user_pods: UserPods) -> None:
        self._hardware = hardware
        self._lease_namespace = lease_namespace
        self._user_pods = user_pods
        self._users: dict[int, dict[int, list[str]]] = {}
        self._held: dict[Gpu, dict[str, Held]] = {}
        self._written: dict[Gpu, Json] = {}
        self._changed_leases: set[Gpu] = set()
        self.changed_nodes: set[int] = set()
        """Numbers of the nodes whose holders have changed."""

    def occupy(self, run: Run, phase: Phase) -> None:
        """Add the pods of a run to the holders of their GPUs, if the phase holds any."""
        if phase not in HOLDING:
            return
        for pod in pods_of(run):
            users = self._users.setdefault(pod.position.node, {})
            for gpu in pod.position.gpus:
                users.setdefault(gpu, []).append(pod.uid)
                if uses_claims(run):
                    key = (pod.position.node, gpu)
                    self._held.setdefault(key, {})[pod.uid] = held_by(run, pod)
                    self._changed_leases.add(key)
            self.changed_nodes.add(pod.position.node)

    def release(self, run: Run, phase: Phase | None) -> None:
        """Remove the pods of a run from the holders of their GPUs, if the phase held any."""
        if phase not in HOLDING:
            return
        for pod in pods_of(run):
            users = self._users.get(pod.position.node, {})
            for gpu in pod.position.gpus:
                users[gpu] = [uid for uid in users.get(gpu, ()) if uid != pod.uid]
                key = (pod.position.node, gpu)
                if self._held.get(key, {}).pop(pod.uid, None):
                    self._changed_leases.add(key)
            self.changed_nodes.add(pod.position.node)

    def take_changed_nodes(self) -> set[int]:
        """Return the nodes whose holders have changed through the simulation or users since the last call."""
        changed = self.changed_nodes | self._user_pods.changed_nodes
        self.changed_nodes, self._user_pods.changed_nodes = set(), set()
        return changed

    def users(self, node: int) -> Mapping[int, Sequence[str]]:
        """Return the uids of the pods on each GPU of a node."""
        found = {gpu: list(uids) for gpu, uids in self._users.get(node, {}).items() if uids}
        for (number, gpu), uids in self._user_pods.gpu_holders.items():
            if number == node:
                found[gpu] = sorted({*found.get(gpu, ()), *uids})
        return found

    def lease_changes(self) -> tuple[list[Json], list[Json]]:
        """Return the leases to write and those to remove since the last call."""
        put: list[Json] = []
        remove: list[Json] = []
        for key in sorted(self._changed_leases):
            before, after = self._written.pop(key, None), self._lease(key)
            if after is not None:
                self._written[key] = after
            if before == after:
                continue
            if after is not None:
                put.append(after)
            if before is not None and (
                after is None or after["metadata"]["uid"] != before["metadata"]["uid"]
            ):
                remove.append(before)
        self._changed_leases = set()
        return put, remove

    def _lease(self, key: Gpu) -> Json | None:
        held = self._held.get(key)
        if not held:
            return None
        machine = self._hardware.machines[key[0]]
        users = self._user_pods.lease_holders.get(key, {})
        return gpu_lease(self._lease_namespace, machine, key[1], held, users)
