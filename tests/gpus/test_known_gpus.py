from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.gpus.known_gpus import GONE, call_the_roll, nameless
from gpufleet.model.device import Device, Vendor


def gpu(index: int, uuid: str, **facts: str) -> Device:
    return Device(index, uuid, Vendor.NVIDIA, model="H100", **facts)  # type: ignore[arg-type]


A, B, C = gpu(0, "A"), gpu(1, "B"), gpu(2, "C")


def test_what_is_there_is_the_inventory() -> None:
    assert call_the_roll([], [B, A]) == (A, B)


def test_a_gpu_that_is_gone_stays_with_a_fault_and_its_facts() -> None:
    assert call_the_roll([A, B, C], [A, B]) == (A, B, replace(C, fault=GONE))


def test_a_gpu_that_comes_back_is_well_again() -> None:
    gone = call_the_roll([A, B], [A])
    assert call_the_roll(gone, [A, B]) == (A, B)


def test_when_the_driver_numbers_anew_no_two_gpus_share_a_number() -> None:
    shifted = replace(C, index=1)
    assert call_the_roll([A, B, C], [A, shifted]) == (A, shifted, replace(B, index=2, fault=GONE))


def test_a_gpu_that_was_exchanged_is_not_missed() -> None:
    slot = {"pci_bus_id": "0000:3b:00.0"}
    old, new = gpu(1, "B", **slot), gpu(1, "D", **slot)
    assert call_the_roll([A, old], [A, new]) == (A, new)
    lost = Device(1, nameless(1), Vendor.NVIDIA, fault="lost", **slot)  # type: ignore[arg-type]
    assert call_the_roll([A, old], [A, lost]) == (A, replace(old, fault="lost"))


def test_a_lost_gpu_without_a_name_is_the_one_that_had_its_number() -> None:
    lost = Device(1, nameless(1), Vendor.NVIDIA, fault="lost")
    assert call_the_roll([A, B], [A, lost]) == (A, replace(B, fault="lost"))
    assert call_the_roll([], [A, lost]) == (A, lost)
    assert call_the_roll([A, lost], [A, B]) == (A, B)


def test_a_lost_gpu_keeps_what_was_known_of_it() -> None:
    lost = Device(1, "B", Vendor.NVIDIA, fault="lost")
    assert call_the_roll([A, B], [A, lost]) == (A, replace(B, fault="lost"))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from("ABCDEFGH"), unique=True, max_size=8), max_size=8))
def test_no_gpu_is_ever_forgotten_or_counted_twice(looks: list[list[str]]) -> None:
    roll: tuple[Device, ...] = ()
    seen: set[str] = set()
    for look in looks:
        found = [gpu(index, name) for index, name in enumerate(look)]
        roll = call_the_roll(roll, found)
        seen |= set(look)
        assert sorted(device.uuid for device in roll) == sorted(seen)
        assert len({device.index for device in roll}) == len(roll)
        assert {device.uuid for device in roll if device.fault is None} == set(look)
