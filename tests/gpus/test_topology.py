from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shim.nvml import NvmlShim, meshed, sliced, switched, uuid

from gpufleet.gpus.drivers.nvml import NvmlReader
from gpufleet.gpus.topology import GpuPosition, gpu_positions, link_gbps
from gpufleet.model.device import Device, Link, LinkKind, Vendor


def gpu(index: int, *links: Link, **facts: bool | str) -> Device:
    plain = Device(index, f"GPU-{index}", Vendor.NVIDIA, pci_bus_id=address(index), links=links)
    return replace(plain, **facts)  # type: ignore[arg-type]


def address(index: int) -> str:
    return f"0000:{index:02x}:00.0"


def to(peer: int, version: int = 2) -> Link:
    return Link(LinkKind.NVLINK, peer=address(peer), version=version)


SWITCH = Link(LinkKind.NVLINK, to_switch=True, version=6)


def test_all_gpus_on_switches_are_one_island_with_the_vendors_bandwidth(nvml_shim: NvmlShim) -> None:
    reader = NvmlReader()
    assert gpu_positions(reader.inventory()) == {
        uuid(n): GpuPosition("nvlink-group-0", 900) for n in range(8)
    }
    reader.close()


def test_direct_links_make_islands_numbered_by_their_first_gpu(nvml_shim: NvmlShim) -> None:
    nvml_shim.describe(meshed((0, 3, 5), (1, 2), (4,)))
    reader = NvmlReader()
    found = gpu_positions(reader.inventory())
    reader.close()
    assert [found[uuid(n)] for n in range(6)] == [
        GpuPosition("nvlink-group-0", 200),
        GpuPosition("nvlink-group-1", 100),
        GpuPosition("nvlink-group-1", 100),
        GpuPosition("nvlink-group-0", 200),
        GpuPosition("pcie-0000:14:00.0", 0),
        GpuPosition("nvlink-group-0", 200),
    ]


def test_a_gpu_in_mig_mode_is_its_own_island(nvml_shim: NvmlShim) -> None:
    nvml_shim.describe(sliced(switched(3), 1))
    reader = NvmlReader()
    found = gpu_positions(reader.inventory())
    reader.close()
    assert found[uuid(1)] == GpuPosition("pcie-0000:11:00.0", 0)
    assert {found[uuid(0)], found[uuid(2)]} == {GpuPosition("nvlink-group-0", 900)}


def test_a_lost_gpu_keeps_its_island_and_has_no_bandwidth() -> None:
    machine = [gpu(0, to(1), fault="lost"), gpu(1, to(0), to(2)), gpu(2, to(1))]
    assert gpu_positions(machine) == {
        "GPU-0": GpuPosition("nvlink-group-0", 0),
        "GPU-1": GpuPosition("nvlink-group-0", 100),
        "GPU-2": GpuPosition("nvlink-group-0", 50),
    }


def test_links_to_devices_outside_the_machine_are_ignored() -> None:
    assert gpu_positions([gpu(0, to(9)), gpu(1)]) == {
        "GPU-0": GpuPosition("pcie-0000:00:00.0", 0),
        "GPU-1": GpuPosition("pcie-0000:01:00.0", 0),
    }


def test_the_table_yields_the_vendors_figures() -> None:
    quoted = {"V100": (6, 2, 300), "A100": (12, 4, 600), "H100": (18, 6, 900), "B200": (18, 7, 1800)}
    for model, (links, version, total) in quoted.items():
        link = Link(LinkKind.NVLINK, to_switch=True, version=version)
        assert gpu_positions([gpu(0, *[link] * links)])["GPU-0"].bandwidth_gbps == total, model
    assert link_gbps(Link(LinkKind.NVLINK)) == 40


def test_xgmi_links_report_their_own_rate() -> None:
    links = [Link(LinkKind.XGMI, peer=address(peer), bandwidth_gbps=128.0) for peer in range(8)]
    machine = [gpu(n, *[link for peer, link in enumerate(links) if peer != n]) for n in range(8)]
    assert set(gpu_positions(machine).values()) == {GpuPosition("xgmi-group-0", 896)}


pairs = st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] < pair[1]))


@settings(max_examples=100, deadline=None)
@given(pairs, st.sets(st.integers(0, 7)), st.randoms())
def test_two_gpus_share_an_island_exactly_if_a_path_of_links_joins_them(
    wires: set[tuple[int, int]], on_switch: set[int], shuffle: st.DataObject
) -> None:
    peers = {n: {b if a == n else a for a, b in wires if n in (a, b)} for n in range(8)}
    machine = [
        gpu(n, *[to(peer) for peer in sorted(peers[n])], *([SWITCH] if n in on_switch else []))
        for n in range(8)
    ]
    found = gpu_positions(machine)
    for n in range(8):
        reached, waiting = set[int](), [n]
        while waiting:
            here = waiting.pop()
            if here not in reached:
                reached.add(here)
                waiting += [*peers[here], *(on_switch if here in on_switch else ())]
        same = {m for m in range(8) if found[f"GPU-{m}"].island == found[f"GPU-{n}"].island}
        assert same == reached
        assert found[f"GPU-{n}"].bandwidth_gbps == 50 * (len(peers[n]) + (n in on_switch))
    shuffle.shuffle(machine)  # type: ignore[attr-defined]
    assert gpu_positions(machine) == found
