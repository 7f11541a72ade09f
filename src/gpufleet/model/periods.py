"""Periods of time in which a pod held GPUs or a node had them: the input of accounting.

The facts of a period do not change. When a pod gets other labels, another workload or other GPUs, its
period ends and the next one begins at the same moment, so that every second counts once, with the
facts of that time.
"""

import msgspec


class AllocationPeriod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One pod holding GPUs of one node from `start` to `end` (0 while open), in Unix seconds."""

    pod_uid: str
    pod: str
    namespace: str
    node: str
    workload_uid: str
    workload_kind: str
    workload_name: str
    source: str
    gpus: int
    share: float
    model: str
    held: tuple[int, ...]
    """Indices of the GPUs, one entry for each MIG instance; empty if unknown."""
    models: tuple[str, ...] = ()
    """The model of each GPU of `held`, if they are not all of `model`."""
    labels: dict[str, str]
    annotations: dict[str, str]
    created: float = 0.0
    """When the pod was created; 0 if that is unknown."""
    priority: int = 0
    max_runtime: float = 0.0
    """The longest run time that the pod declares, in seconds; 0 if it declares none."""
    start: float
    end: float = 0.0
    interrupted: bool = False
    """Whether it ended because the pod was evicted, preempted or lost its node."""

    @property
    def facts(self) -> "AllocationPeriod":
        """Return what decides whether two periods are one."""
        return msgspec.structs.replace(self, start=0.0, end=0.0, interrupted=False)


class CapacityPeriod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One node having GPUs from `start` to `end` (0 while open), in Unix seconds."""

    node: str
    gpus: int
    model: str
    aliases: tuple[str, ...] = ()
    """Other names that exporters use for the node."""
    start: float
    end: float = 0.0

    @property
    def facts(self) -> "CapacityPeriod":
        """Return what decides whether two periods are one."""
        return msgspec.structs.replace(self, start=0.0, end=0.0)
