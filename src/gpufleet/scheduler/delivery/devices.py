"""Write a placement as the devices of a ResourceClaim."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from gpufleet.errors import OperationRefused
from gpufleet.kubernetes.claimed_gpus import PublishedDevice
from gpufleet.kubernetes.quantities import parse_quantity
from gpufleet.kubernetes.resource_claims import AllocatedDevice, ResourceClaim, allocation_manifest
from gpufleet.placement import Exclusivity, Fits
from gpufleet.placement.request import WHOLE
from gpufleet.scheduler.state.claim_allocations import ClaimAllocations


class DeviceMissing(OperationRefused):
    """A GPU of the placement is no device of any driver."""


def allocation_of(
    claim: ResourceClaim,
    fits: Fits,
    allocations: ClaimAllocations,
    now: datetime,
    new_share: Callable[[], str],
) -> dict[str, Any]:
    """Return the `status.allocation` that gives the claim these GPUs; raise DeviceMissing if one is not published."""
    devices = allocations.devices_on(fits.node)
    names = fits.instances or tuple((gpu, "") for gpu in fits.gpus)
    request = claim.spec.devices.requests[0].name
    results = []
    for gpu, instance in names:
        device = devices.get((gpu, instance))
        if device is None:
            what = f"MIG instance {instance} of GPU {gpu}" if instance else f"GPU {gpu}"
            raise DeviceMissing(f"{what} of {fits.node} is no device of a ResourceSlice")
        results.append(_result(request, device, fits, new_share))
    return allocation_manifest(fits.node, tuple(results), now)


def _result(
    request: str, device: PublishedDevice, fits: Fits, new_share: Callable[[], str]
) -> AllocatedDevice:
    name = device.name
    if fits.request.exclusivity is not Exclusivity.SHARED or not device.device.allow_multiple_allocations:
        return AllocatedDevice(request, name.driver, name.pool, name.device)
    consumed = {
        key: str(int(parse_quantity(each.value) * fits.request.share_milli / WHOLE))
        for key, each in device.device.capacity.items()
    }
    return AllocatedDevice(
        request, name.driver, name.pool, name.device, share_id=new_share(), consumed_capacity=consumed
    )
