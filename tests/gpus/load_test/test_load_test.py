"""The load test passes healthy GPUs and finds each fault."""

import ctypes
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.gpus.load_test.fake_cuda import FakeCuda

from gpufleet.cli.diag import print_json, print_table
from gpufleet.errors import DevicesUnavailable, InvalidRequest
from gpufleet.gpus.load_test.cuda import Cuda, load_driver
from gpufleet.gpus.load_test.expected import memory_gbps, pcie_gbps
from gpufleet.gpus.load_test.run import Plan, run_load_test
from gpufleet.gpus.load_test.steps import Result
from gpufleet.model.device import Device, DeviceProcess, DeviceReading, Link, LinkKind, Vendor

UUIDS = ("GPU-82323e60-741d-7c36-dcbb-45173429a012", "GPU-11111111-741d-7c36-dcbb-45173429a012")
LINKS = tuple(Link(LinkKind.NVLINK, to_switch=True, bandwidth_gbps=50.0) for _ in range(18))
H200 = Device(
    index=0,
    uuid=UUIDS[0],
    vendor=Vendor.NVIDIA,
    model="NVIDIA H200",
    links=LINKS,
    pcie_generation=5,
    pcie_width=16,
)


class Driver:
    """The readings of the driver."""

    def __init__(self, *gpus: Device) -> None:
        self.gpus = gpus
        self.busy: tuple[DeviceProcess, ...] = ()
        self.before = DeviceReading(uuid="", index=0, at=0.0, ecc_uncorrected=1, remapped_rows_uncorrected=0)
        self.after = self.before
        self._read = False

    def inventory(self) -> tuple[Device, ...]:
        return self.gpus

    def processes(self) -> tuple[DeviceProcess, ...]:
        return self.busy

    def readings(self) -> tuple[DeviceReading, ...]:
        reading, self._read = self.after if self._read else self.before, True
        return tuple(replace(reading, uuid=gpu.uuid, index=gpu.index) for gpu in self.gpus)


def results(
    library: FakeCuda, driver: Driver | None = None, plan: Plan | None = None
) -> dict[tuple[int, str], Result]:
    found = run_load_test(
        driver or Driver(H200),  # type: ignore[arg-type]
        Cuda(library),
        plan or Plan(seconds=0.01),
        lambda model: 400.0,
    )
    return {(gpu.index, result.step): result for gpu, result in found}


def failed(found: dict[tuple[int, str], Result]) -> list[str]:
    return [step for (_, step), result in found.items() if result.passed is False]


def test_a_healthy_gpu_passes_every_step_and_its_memory_is_freed() -> None:
    library = FakeCuda(UUIDS[0])
    found = results(library)
    assert {step: result.passed for (_, step), result in found.items()} == {
        "PCIe to the GPU": True,
        "PCIe from the GPU": True,
        "memory": True,
        "memory written": True,
        "memory read": True,
        "matrix multiplication": True,
        "matrix multiplication rate": True,
        "errors counted by the driver": True,
    }
    assert found[0, "memory read"].value == pytest.approx(4400, rel=0.01)
    assert found[0, "PCIe to the GPU"].value == pytest.approx(55, rel=0.01)
    assert len(library.freed) == len(set(library.freed)) == 6


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ({"stuck_bit_at": 4711}, "memory"),
        ({"wrong_sums": True}, "matrix multiplication"),
        ({"slow": {"memory"}}, "memory read"),
        ({"slow": {"copy"}}, "PCIe to the GPU"),
        ({"slow": {"multiply"}}, "matrix multiplication rate"),
        ({"fails": {"cuEventSynchronize": 214}}, "memory"),
        ({"fails": {"cuCtxCreate_v2": 999}}, "PCIe"),
    ],
)
def test_a_fault_fails_its_step(fault: dict[str, Any], step: str) -> None:
    library = FakeCuda(UUIDS[0])
    for name, value in fault.items():
        setattr(library, name, value)
    assert step in failed(results(library))


def test_wrong_memory_is_counted_and_located() -> None:
    library = FakeCuda(UUIDS[0])
    library.stuck_bit_at = 4711
    detail = results(library)[0, "memory"].detail
    assert "words of 16 bytes were wrong, one of them at 0x" in detail


def test_an_error_of_the_driver_names_the_call_and_the_error() -> None:
    library = FakeCuda(UUIDS[0])
    library.fails["cuMemAlloc_v2"] = 2
    assert results(library)[0, "memory"].detail == "cuMemAlloc_v2: CUDA_ERROR_2 (2)"


@pytest.mark.parametrize(
    ("change", "detail"),
    [
        ({"ecc_uncorrected": 3}, "2 uncorrectable memory errors"),
        ({"remapped_rows_uncorrected": 1}, "1 rows remapped after uncorrectable errors"),
        ({"remap_failed": True}, "a row could not be remapped"),
        ({"fault": "the GPU is lost"}, "the GPU is lost"),
    ],
)
def test_what_the_driver_counts_meanwhile_fails_the_gpu(change: dict[str, Any], detail: str) -> None:
    driver = Driver(H200)
    driver.after = replace(driver.before, **change)
    found = results(FakeCuda(UUIDS[0]), driver)
    assert found[0, "errors counted by the driver"].passed is False
    assert found[0, "errors counted by the driver"].detail == detail


@pytest.mark.parametrize(
    ("gpu", "detail"),
    [
        (replace(H200, fault="the GPU is lost"), "the GPU is lost"),
        (replace(H200, mig_enabled=True), "not tested: the GPU is divided into MIG instances"),
        (replace(H200, uuid=UUIDS[1]), "CUDA does not list the GPU"),
    ],
)
def test_a_gpu_that_can_not_be_tested_fails_with_the_reason(gpu: Device, detail: str) -> None:
    found = results(FakeCuda(UUIDS[0]), Driver(gpu))
    assert failed(found) == ["load test"]
    assert detail in found[0, "load test"].detail


def test_a_gpu_in_use_is_left_alone_unless_asked() -> None:
    driver = Driver(H200)
    driver.busy = (DeviceProcess(uuid=UUIDS[0], index=0, pid=4711),)
    found = results(FakeCuda(UUIDS[0]), driver)
    assert found[0, "load test"].detail == ("not tested: process 4711 uses the GPU; end it, or give --in-use")
    assert failed(results(FakeCuda(UUIDS[0]), driver, Plan(seconds=0.01, in_use=True))) == []


def test_neighbours_copy_to_each_other_and_slow_links_fail() -> None:
    gpus = (H200, replace(H200, index=1, uuid=UUIDS[1]))
    found = results(FakeCuda(*UUIDS), Driver(*gpus))
    assert found[0, "copy to GPU 1"].passed
    assert found[1, "copy to GPU 0"].passed
    assert found[0, "copy to GPU 1"].least == pytest.approx(360)
    fast = tuple(replace(gpu, links=LINKS * 2) for gpu in gpus)
    assert failed(results(FakeCuda(*UUIDS), Driver(*fast))) == ["copy to GPU 1", "copy to GPU 0"]


def test_gpus_are_chosen_by_index_or_uuid() -> None:
    gpus = (H200, replace(H200, index=1, uuid=UUIDS[1]))
    for name in ("1", UUIDS[1]):
        found = results(FakeCuda(*UUIDS), Driver(*gpus), Plan([name], seconds=0.01))
        assert {index for index, _ in found} == {1}
    with pytest.raises(InvalidRequest, match="no GPU '7' on this machine; there are 0 "):
        results(FakeCuda(*UUIDS), Driver(*gpus), Plan(["7"]))


def test_older_gpus_are_tested_without_tensor_cores() -> None:
    library = FakeCuda(UUIDS[0])
    library.major = 7
    found = results(library)
    assert failed(found) == []
    assert "Ampere" in found[0, "matrix multiplication"].detail


def test_a_machine_without_the_driver_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(DevicesUnavailable, match=r"libcuda\.so\.1 of NVIDIA's driver is not there"):
        load_driver()


def test_a_driver_that_does_not_start_says_why() -> None:
    library = FakeCuda(UUIDS[0])
    library.fails["cuInit"] = 100
    with pytest.raises(DevicesUnavailable, match=r"cuInit: CUDA_ERROR_100 \(100\)"):
        Cuda(library)


def test_unknown_models_and_links_have_no_expectation() -> None:
    assert memory_gbps("NVIDIA H200") == pytest.approx(3840)
    assert memory_gbps("NVIDIA A100-SXM4-80GB") == pytest.approx(0.8 * 2039)
    assert memory_gbps("Something else") is None
    assert pcie_gbps(5, 16) == pytest.approx(50.4, rel=0.01)
    assert pcie_gbps(None, 16) is None


def test_the_table_and_the_document_tell_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    library = FakeCuda(UUIDS[0])
    library.wrong_sums = True

    def found() -> Any:
        plan = Plan(seconds=0.01)
        return run_load_test(Driver(H200), Cuda(library), plan, lambda model: None)  # type: ignore[arg-type]

    assert print_table(found()) == 1
    text = capsys.readouterr().out
    assert "GPU 0  NVIDIA H200  GPU-82323e60" in text
    assert "FAILED  matrix multiplication" in text
    assert text.endswith("GPU 0 failed: matrix multiplication\n")
    assert print_json(found()) == 1
    (gpu,) = json.loads(capsys.readouterr().out)
    assert gpu["passed"] is False
    assert [step["step"] for step in gpu["steps"] if step["passed"] is False] == ["matrix multiplication"]
    library.wrong_sums = False
    assert print_table(found()) == 0
    assert capsys.readouterr().out.endswith("1 of 1 GPUs passed.\n")
