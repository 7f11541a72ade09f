"""Write the allocation and the reservation of a pod's ResourceClaim.

Every write carries the version of the claim that was read, so it can't undo a later one. After a write without a
response the claim is changed, which invalidates the write if it is still on its way; the response to that change tells
what the claim has.
"""

import asyncio
from collections.abc import Callable

from gpufleet.errors import GpufleetError, KubernetesUnavailable
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.client.errors import Conflict, KubernetesRefused, TooManyRequests, Unreachable
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import ResourceClaim
from gpufleet.placement import Fits
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.delivery.devices import allocation_of
from gpufleet.scheduler.extender.nudger import nudge_value
from gpufleet.scheduler.state import Ledger

_ATTEMPTS = 3


class NotAllocated(GpufleetError):
    """The allocation could not be written; nothing is allocated."""


class ClaimWriter:
    """Writes ResourceClaims; the server's responses go into the ledger immediately."""

    def __init__(
        self, api: SchedulerApi, ledger: Ledger, timing: Timing, new_share: Callable[[], str]
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._timing = timing
        self._new_share = new_share
        self.uncertain: dict[str, ResourceClaim] = {}
        """The claims of pods whose write had no response, as they were read."""

    async def allocate(self, pod: Pod, fits: Fits) -> None:
        """Write the allocation of a pod, and reserve its claim for it."""
        for _ in range(_ATTEMPTS):
            claim = self._ledger.resource_claims.of_pod(pod)
            if claim is None:
                raise NotAllocated(f"pod {pod_name(pod)} has no ResourceClaim")
            if claim.status.allocation is not None:
                raise NotAllocated(f"ResourceClaim {claim.metadata.name} is allocated already")
            new = allocation_of(
                claim, fits, self._ledger.resource_claims, self._timing.now(), self._new_share
            )
            try:
                status = {"allocation": new, "reservedFor": [consumer(pod)]}
                self._ledger.put_resource_claim(await self._api.write_claim(claim, status))
                return
            except Conflict:
                await self.read(claim)
            except (KubernetesRefused, Unreachable, TooManyRequests):
                raise
            except asyncio.CancelledError:
                self.uncertain[pod.metadata.uid] = claim
                raise
            except KubernetesUnavailable:
                self.uncertain[pod.metadata.uid] = claim
                await self.settle(pod.metadata.uid)
                return
        raise NotAllocated(
            f"the ResourceClaim of {pod_name(pod)} changed {_ATTEMPTS} times while it was written"
        )

    async def settle(self, uid: str) -> None:
        """Find out what became of a write without a response; raise NotAllocated if it was not done and never will."""
        claim = self.uncertain[uid]
        now = await self._api.touch_claim(claim, nudge_value(self._timing))
        if now is None:
            self._ledger.drop_resource_claim(claim)
        else:
            self._ledger.put_resource_claim(now)
        self.uncertain.pop(uid, None)
        if now is None or now.status.allocation is None:
            raise NotAllocated("the server did not write the allocation")

    async def release(self, claim: ResourceClaim, status: dict[str, None]) -> bool:
        """Clear these fields of the status; return False if the claim has changed in the meantime."""
        try:
            self._ledger.put_resource_claim(await self._api.write_claim(claim, status))
        except Conflict:
            # kube-scheduler has reserved or cleared it in the meantime.
            await self.read(claim)
            return False
        return True

    async def reserve(self, claim: ResourceClaim, pod: Pod) -> bool:
        """Reserve an allocated claim for its pod; return False if the claim has changed in the meantime."""
        try:
            now = await self._api.write_claim(claim, {"reservedFor": [consumer(pod)]})
            self._ledger.put_resource_claim(now)
        except Conflict:
            await self.read(claim)
            return False
        return True

    async def read(self, claim: ResourceClaim) -> None:
        """Read the claim from the server into the ledger."""
        now = await self._api.read_claim(claim)
        if now is None:
            self._ledger.drop_resource_claim(claim)
        else:
            self._ledger.put_resource_claim(now)


def consumer(pod: Pod) -> dict[str, str]:
    """Return a pod as an entry of `reservedFor`."""
    return {"resource": "pods", "name": pod.metadata.name, "uid": pod.metadata.uid}


def pod_name(pod: Pod) -> str:
    """Return namespace and name of a pod, for messages."""
    return f"{pod.metadata.namespace}/{pod.metadata.name}"
