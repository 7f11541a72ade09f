from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.gpus.known_gpus import NOT_LISTED, merge_known_gpus, placeholder_uuid
from gpufleet.model.device import Device, Vendor


def gpu(index: int, uuid: str, **facts: str) -> Device:
    return Device(index, uuid, Vendor.NVIDIA, model="H100", **facts)  # type: ignore[arg-type]


A, B, C = gpu(0, "A"), gpu(1, "B"), gpu(2, "C")


def test_without_missing_gpus_the_inventory_is_unchanged() -> None:
    assert merge_known_gpus([], [B, A]) == (A, B)


def test_a_missing_gpu_stays_with_a_fault_and_its_model() -> None:
    assert merge_known_gpus([A, B, C], [A, B]) == (A, B, replace(C, fault=NOT_LISTED))


def test_a_gpu_that_comes_back_has_no_fault() -> None:
    gone = merge_known_gpus([A, B], [A])
    assert merge_known_gpus(gone, [A, B]) == (A, B)


def test_indexes_stay_unique_when_the_driver_renumbers() -> None:
    shifted = replace(C, index=1)
    assert merge_known_gpus([A, B, C], [A, shifted]) == (A, shifted, replace(B, index=2, fault=NOT_LISTED))


def test_a_replaced_gpu_is_not_missing() -> None:
    slot = {"pci_bus_id": "0000:3b:00.0"}
    old, new = gpu(1, "B", **slot), gpu(1, "D", **slot)
    assert merge_known_gpus([A, old], [A, new]) == (A, new)
    lost = Device(1, placeholder_uuid(1), Vendor.NVIDIA, fault="lost", **slot)  # type: ignore[arg-type]
    assert merge_known_gpus([A, old], [A, lost]) == (A, replace(old, fault="lost"))


def test_a_lost_gpu_without_uuid_is_identified_by_its_index() -> None:
    lost = Device(1, placeholder_uuid(1), Vendor.NVIDIA, fault="lost")
    assert merge_known_gpus([A, B], [A, lost]) == (A, replace(B, fault="lost"))
    assert merge_known_gpus([], [A, lost]) == (A, lost)
    assert merge_known_gpus([A, lost], [A, B]) == (A, B)


def test_a_lost_gpu_keeps_its_model() -> None:
    lost = Device(1, "B", Vendor.NVIDIA, fault="lost")
    assert merge_known_gpus([A, B], [A, lost]) == (A, replace(B, fault="lost"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from("ABCDEFGH"), unique=True, max_size=8), max_size=8))
def test_no_gpu_is_ever_dropped_or_duplicated(inventories: list[list[str]]) -> None:
    known: tuple[Device, ...] = ()
    seen: set[str] = set()
    for inventory in inventories:
        found = [gpu(index, name) for index, name in enumerate(inventory)]
        known = merge_known_gpus(known, found)
        seen |= set(inventory)
        assert sorted(device.uuid for device in known) == sorted(seen)
        assert len({device.index for device in known}) == len(known)
        assert {device.uuid for device in known if device.fault is None} == set(inventory)
