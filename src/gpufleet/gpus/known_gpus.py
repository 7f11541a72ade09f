"""Remember the GPUs of the machine, so that a GPU that disappears is a fault and not a smaller machine.

A GPU is lost in one of two ways. The driver still counts it but cannot reach it: the reader lists it with
a `fault` and maybe without its uuid. Or the driver was restarted and counts one GPU less. In both cases
the device stays in the list under its uuid.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import count

from gpufleet.model.device import Device

NOT_LISTED = "the driver no longer lists this GPU"


def placeholder_uuid(index: int) -> str:
    """Return a uuid for a GPU whose own one cannot be read."""
    return f"unknown-{index}"


def merge_known_gpus(known: Iterable[Device], found: Iterable[Device]) -> tuple[Device, ...]:
    """Return `found` and all known devices that are missing there, with a fault, by index.

    A missing device keeps its index unless a found one uses it (drivers renumber on restart). Then it
    gets the lowest free index, so that indexes stay unique.
    """
    listed = tuple(found)
    before = {device.uuid: device for device in _not_replaced(known, listed)}
    present = {device.uuid: _with_known_model(device, before.get(device.uuid)) for device in listed}
    absent = sorted((d for d in before.values() if d.uuid not in present), key=lambda d: d.index)
    missing: list[Device] = []
    for device in absent:
        lost = present.get(placeholder_uuid(device.index))
        if lost is not None:
            del present[lost.uuid]
            missing.append(replace(device, fault=lost.fault))
        elif device.uuid != placeholder_uuid(device.index):
            missing.append(replace(device, fault=device.fault or NOT_LISTED))
    used = {device.index for device in present.values()}
    kept = {device.index for device in missing if device.index not in used}
    free = (n for n in count() if n not in used and n not in kept)
    numbered = [d if d.index in kept else replace(d, index=next(free)) for d in missing]
    return tuple(sorted([*present.values(), *numbered], key=lambda d: d.index))


def _with_known_model(device: Device, before: Device | None) -> Device:
    """Add the known model and links of a lost GPU, which can no longer be read."""
    if device.fault is None or before is None:
        return device
    return replace(before, index=device.index, fault=device.fault)


def _not_replaced(known: Iterable[Device], found: Collection[Device]) -> list[Device]:
    """Return the known devices except those that were replaced by another GPU in the same slot."""
    uuids = {device.uuid for device in found}
    slots = {device.pci_bus_id for device in found if device.pci_bus_id and not device.fault}
    return [device for device in known if device.uuid in uuids or device.pci_bus_id not in slots]
