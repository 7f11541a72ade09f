"""Stretches of time: a pod that held GPUs, a node that had them. What accounting is made of.

Nothing of a period changes while it lasts. When a pod gets other labels, another workload or
other GPUs, its period ends and the next one begins at the same moment, so that every second is
counted once, under the names that were true in it.
"""

import msgspec


class AllocationPeriod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One pod holding GPUs of one node from `start` to `end` (0 while it lasts), in Unix seconds."""

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
    """Which GPUs, where that is known; empty where it is not."""
    models: tuple[str, ...] = ()
    """The model of each GPU of `held`, where they are not all of `model`."""
    labels: dict[str, str]
    annotations: dict[str, str]
    start: float
    end: float = 0.0


class CapacityPeriod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One node having GPUs from `start` to `end` (0 while it lasts), in Unix seconds."""

    node: str
    gpus: int
    model: str
    aliases: tuple[str, ...] = ()
    """Other names under which exporters know the node."""
    start: float
    end: float = 0.0
