"""The gangs that are placed: their members are being leased and bound."""

import asyncio
from dataclasses import dataclass, field

from gpufleet.scheduler.state.gang_identity import Gang


@dataclass
class GangPlan:
    """A gang that is placed; its members are being leased and bound."""

    deadline: float
    members: set[str]
    leased: bool = False
    """Whether all members have their leases."""
    refused: bool = False
    """Whether kube-scheduler does not offer the node of a member."""
    arrived: set[str] = field(default_factory=set)
    """The members whose bind has been called."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class GangPlans(dict[Gang, GangPlan]):
    """Plans by gang."""

    def has(self, uid: str) -> bool:
        """Return whether the pod is a member of a planned gang, whose leases are kept or released as one."""
        return any(uid in plan.members for plan in self.values())
