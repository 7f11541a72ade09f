"""What the planner decides for a unit of the queue; everything else only reads it."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits, Refused
from gpufleet.scheduler.state.gang_identity import Gang

PENDING = "Pending: "
"""Begins the reason in the message of a claim's status."""

NOT_TRIED = "not tried yet"
"""The reason while the planner has not decided."""


@dataclass(frozen=True)
class Placed:
    """The GPUs of each pod of the unit, by UID. They are held in memory until they are leased."""

    members: Mapping[str, Fits]


@dataclass(frozen=True)
class Waiting:
    """Why the unit does not start now, in one sentence.

    `refused` has the reason of each node, if the nodes are the reason. `reserved` are the GPUs that
    are kept for the unit until all of them are free.
    """

    reason: str
    refused: Refused | None = None
    reserved: tuple[Fits, ...] = ()
    preempting: bool = False


Decision = Placed | Waiting


@dataclass(frozen=True)
class Decided:
    """A new decision for a unit: its pods and, if it preempts others, the victims."""

    name: str
    pods: tuple[Pod, ...]
    decision: Decision
    victims: tuple[Pod, ...] = ()
    gang: Gang | None = None
    reclaims: str = ""
    """The GpuQueue for whose guarantee the victims leave; empty if they have a lower priority."""


@dataclass(frozen=True)
class Reservation:
    """GPUs kept for a unit.

    `needed_at` is known if all pods on them have declared their run time. `free_at`, when the unit will
    have used them, is known if the unit has declared its run time, too.
    """

    places: tuple[Fits, ...]
    made_at: float
    needed_at: float | None = None
    free_at: float | None = None
