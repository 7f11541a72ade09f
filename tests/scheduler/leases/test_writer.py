"""How many leases are acquired at the same time."""

import asyncio
from typing import cast

from msgspec import structs

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Lease
from gpufleet.placement import Fits, Request
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.leases.writer import LeaseWriter, PodRef, new_stamp
from gpufleet.scheduler.state import Ledger


class Api:
    """Creates leases and counts the calls in flight."""

    def __init__(self) -> None:
        self.leases: list[str] = []
        self.at_once = self.most_at_once = 0

    async def create_lease(self, lease: Lease) -> Lease:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        self.leases.append(lease.metadata.name)
        meta = structs.replace(lease.metadata, uid=lease.metadata.name, resource_version="1")
        return structs.replace(lease, metadata=meta)


async def test_the_leases_of_a_large_gang_are_acquired_some_at_a_time_and_in_order() -> None:
    api = Api()
    lease_writer = LeaseWriter(cast(SchedulerApi, api), Ledger(), "default", Timing(), new_stamp)
    members = [(PodRef(f"uid-{at}", "ml", f"pod-{at}"), f"node-{at}") for at in range(64)]
    gpus = tuple(range(8))
    await asyncio.gather(
        *(lease_writer.reserve(pod, Fits(Request(count=8), node, gpus)) for pod, node in members)
    )
    assert len(set(api.leases)) == 64 * 8
    assert api.most_at_once == 64
    assert api.leases[:8] == [f"gpu-node-0-{gpu}" for gpu in gpus]
