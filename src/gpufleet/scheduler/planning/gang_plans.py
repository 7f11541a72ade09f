"""The gangs that are placed: their members are being leased and bound."""

import asyncio
from dataclasses import dataclass, field, replace

from gpufleet.scheduler.state.gang_identity import Gang


@dataclass(frozen=True)
class MemberLeases:
    """The leases of a member: their stamp, and the version of the pod that was read before they were written."""

    stamp: str
    pod_version: str


@dataclass
class GangPlan:
    """A gang that is placed; its members are being leased and bound."""

    deadline: float
    members: set[str]
    leased: bool = False
    """Whether all members have their leases."""
    refused: bool = False
    """Whether kube-scheduler does not offer the node of a member."""
    leases: dict[str, MemberLeases] = field(default_factory=dict)
    """The leases that this process has written, by the UID of the member."""
    arrived: set[str] = field(default_factory=set)
    """The members whose bind has been called."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class GangPlans(dict[Gang, GangPlan]):
    """Plans by gang."""

    def has(self, uid: str) -> bool:
        """Return whether the pod is a member of a planned gang, whose leases are kept or released as one."""
        return any(uid in plan.members for plan in self.values())

    def leases_of(self, uid: str) -> MemberLeases | None:
        """Return the leases that this process has written for a member."""
        return next((plan.leases[uid] for plan in self.values() if uid in plan.leases), None)

    def pod_changed(self, uid: str, before: str, after: str) -> None:
        """Note that a write of this process took a member from one version to the next."""
        for plan in self.values():
            if (leases := plan.leases.get(uid)) is not None and leases.pod_version == before:
                plan.leases[uid] = replace(leases, pod_version=after)
