"""Remember which GPUs the machine had, so that one that disappears is a fault and not a smaller machine.

A lost GPU shows in one of two ways. The driver still counts it but can't reach it: the reader
lists it with a `fault` and perhaps without its uuid. Or the driver was started again and counts
one less. In both cases the device stays in the roster under the uuid that it had.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import count

from gpufleet.model.device import Device

GONE = "the driver does not list this GPU any more"


def nameless(index: int) -> str:
    """The stand-in uuid of a GPU that was lost before it ever told its own."""
    return f"unknown-{index}"


def call_the_roll(known: Iterable[Device], found: Iterable[Device]) -> tuple[Device, ...]:
    """`found`, and every known device that is missing there with its fault, by index.

    A missing device keeps its index unless a found one has taken it (drivers number anew when
    they start): then it gets the lowest free one, so that no two devices share a number.
    """
    listed = tuple(found)
    before = {device.uuid: device for device in _not_replaced(known, listed)}
    present = {device.uuid: _as_it_was(device, before.get(device.uuid)) for device in listed}
    missing = sorted((d for d in before.values() if d.uuid not in present), key=lambda d: d.index)
    roll: list[Device] = []
    for device in missing:
        lost = present.get(nameless(device.index))
        if lost is not None:
            del present[lost.uuid]
            roll.append(replace(device, fault=lost.fault))
        elif device.uuid != nameless(device.index):
            roll.append(replace(device, fault=device.fault or GONE))
    taken = {device.index for device in present.values()}
    kept = {device.index for device in roll if device.index not in taken}
    free = (n for n in count() if n not in taken and n not in kept)
    placed = [d if d.index in kept else replace(d, index=next(free)) for d in roll]
    return tuple(sorted([*present.values(), *placed], key=lambda d: d.index))


def _as_it_was(device: Device, before: Device | None) -> Device:
    """A lost GPU can't tell its model or links any more, but they are known."""
    if device.fault is None or before is None:
        return device
    return replace(before, index=device.index, fault=device.fault)


def _not_replaced(known: Iterable[Device], found: Collection[Device]) -> list[Device]:
    """The known devices but those in whose slot another one is now: a GPU was exchanged, none is missing."""
    uuids = {device.uuid for device in found}
    slots = {device.pci_bus_id for device in found if device.pci_bus_id and not device.fault}
    return [device for device in known if device.uuid in uuids or device.pci_bus_id not in slots]
