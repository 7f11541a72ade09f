import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.exporters.conftest import opened, until
from tests.exporters.samples import PAGES
from tests.victoriametrics_fixture import running_victoriametrics

from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.model.reading import Fault, FaultKind, GpuRef, GpuUser, Quantity, Readings

MIB, GIB = 1024.0**2, 1024.0**3

Q = Quantity
EXPECTED: dict[str, dict[GpuRef, dict[Quantity, float]]] = {
    "gpufleet": {
        GpuRef("agent-1", 0): {
            Q.UTILIZATION: 75.5,
            Q.MEMORY_USED: 8 * GIB,
            Q.MEMORY_FREE: 24 * GIB,
            Q.MEMORY_TOTAL: 32 * GIB,
            Q.MEMORY_UTILIZATION: 25.0,
            Q.TEMPERATURE: 65.0,
        },
        GpuRef("agent-2", 1): {Q.UTILIZATION: 0.0},
    },
    "dcgm": {
        GpuRef("dcgm-1", 0): {
            Q.UTILIZATION: 90.0,
            Q.MEMORY_USED: 1 * GIB,
            Q.MEMORY_FREE: 2 * GIB,
            Q.MEMORY_RESERVED: 1 * GIB,
            Q.MEMORY_TOTAL: 4 * GIB,
            Q.MEMORY_UTILIZATION: 25.0,
            Q.TEMPERATURE: 44.0,
            Q.POWER: 512.5,
            Q.ENERGY: 5.0,
            Q.TENSOR_ACTIVITY: 0.125,
            Q.DRAM_ACTIVITY: 0.5,
            Q.FABRIC_TRAFFIC: 3e6,
        },
        GpuRef("dcgm-1", 1): {Q.UTILIZATION: 0.0, Q.TEMPERATURE: 41.0},
        GpuRef("dcgm-1", 2, "3"): {Q.UTILIZATION: 25.0},
    },
    "dcgm-new": {
        GpuRef("dcgm-9", 0): {
            Q.UTILIZATION: 50.0,
            Q.MEMORY_USED: 1 * GIB,
            Q.MEMORY_FREE: 3 * GIB,
            Q.MEMORY_TOTAL: 4 * GIB,
            Q.MEMORY_UTILIZATION: 25.0,
            Q.TEMPERATURE: 50.0,
            Q.POWER: 700.0,
            Q.POWER_LIMIT: 1000.0,
            Q.ENERGY: 12.5,
            Q.SM_ACTIVITY: 0.75,
        },
    },
    "amd": {
        GpuRef("amd-1", 4): {
            Q.UTILIZATION: 33.0,
            Q.MEMORY_USED: 512 * MIB,
            Q.MEMORY_FREE: 512 * MIB,
            Q.MEMORY_TOTAL: 1 * GIB,
            Q.MEMORY_UTILIZATION: 50.0,
            Q.TEMPERATURE: 61.0,
            Q.POWER: 300.0,
            Q.ENERGY: 2.5,
        },
        GpuRef("amd-1", 4, "1"): {},
    },
    "nvidia-smi": {
        GpuRef("127.0.0.1", 6): {
            Q.UTILIZATION: 7.0,
            Q.MEMORY_USED: 1 * GIB,
            Q.MEMORY_FREE: 3 * GIB,
            Q.MEMORY_TOTAL: 4 * GIB,
            Q.MEMORY_UTILIZATION: 25.0,
            Q.TEMPERATURE: 36.0,
            Q.POWER: 90.5,
            Q.POWER_LIMIT: 450.0,
        },
    },
    "all-smi": {
        GpuRef("allsmi-1", 2): {
            Q.UTILIZATION: 12.0,
            Q.MEMORY_USED: 1 * GIB,
            Q.MEMORY_FREE: 3 * GIB,
            Q.MEMORY_TOTAL: 4 * GIB,
            Q.MEMORY_UTILIZATION: 25.0,
            Q.TEMPERATURE: 40.0,
            Q.POWER: 30.0,
            Q.POWER_LIMIT: 60.0,
        },
    },
}
ALL = {ref: values for gpus in EXPECTED.values() for ref, values in gpus.items()}


def read(readings: Readings) -> dict[GpuRef, dict[Quantity, float]]:
    return {
        gpu.ref: {q: round(v, 9) for q in Quantity if (v := readings.value(row, q)) is not None}
        for row, gpu in enumerate(readings.gpus)
    }


@pytest.mark.parametrize("name", list(PAGES))
async def test_each_exporter_alone_is_detected_and_converted_to_our_units(
    worlds: Mapping[str, str], name: str
) -> None:
    async with opened(worlds[name]) as source:
        readings = await until(source, lambda r: len(r) >= len(EXPECTED[name]))
        assert read(readings) == EXPECTED[name]
        assert source.health().exporters == (name.removesuffix("-new"),)
        assert not readings.errors


async def test_all_exporters_together_make_one_ordered_result(everything: str) -> None:
    async with opened(everything) as source:
        before = time.time()
        readings = await until(source, lambda r: len(r) >= len(ALL))
        assert read(readings) == ALL
        assert [gpu.ref for gpu in readings.gpus] == sorted(ALL)
        assert source.health().healthy
        assert source.health().exporters == ("gpufleet", "dcgm", "amd", "nvidia-smi", "all-smi")
        for row, gpu in enumerate(readings.gpus):
            sampled = readings.sampled_at(row)
            if ALL[gpu.ref]:
                # the scrape's time, not that of our query
                assert sampled is not None
                assert before - 30 < sampled < readings.taken_at


async def test_only_the_configured_exporters_are_read(everything: str) -> None:
    async with opened(everything, vocabularies=("amd", "all-smi")) as source:
        readings = await until(source, lambda r: len(r) >= 3)
        assert {gpu.ref.node for gpu in readings.gpus} == {"amd-1", "allsmi-1"}


async def test_a_gpu_has_the_identity_that_its_exporter_reports(everything: str) -> None:
    async with opened(everything) as source:
        readings = await until(source, lambda r: len(r) >= len(ALL))
        gpus = {gpu.ref: gpu for gpu in readings.gpus}
        part = gpus[GpuRef("dcgm-1", 2, "3")]
        assert (part.vendor, part.model, part.profile) == ("NVIDIA", "NVIDIA_H100", "1g.10gb")
        assert gpus[GpuRef("127.0.0.1", 6)].uuid == "GPU-df6e7a7c-7314-46f8-abc4-b88b36dcf3aa"
        assert gpus[GpuRef("127.0.0.1", 6)].model == "NVIDIA_GeForce_RTX_4090"
        assert gpus[GpuRef("amd-1", 4)].vendor == "AMD"
        assert gpus[GpuRef("agent-1", 0)].vendor == "NVIDIA"
        assert (gpus[GpuRef("allsmi-1", 2)].model, gpus[GpuRef("allsmi-1", 2)].vendor) == ("APPLE_M9", "")


async def test_holders_come_from_the_exporter_and_its_own_pod_is_excluded(everything: str) -> None:
    async with opened(everything) as source:
        readings = await until(source, lambda r: len(r) >= len(ALL))
        held = {readings.gpus[row].ref: holders for row, holders in readings.holders.items()}
        assert held == {
            GpuRef("dcgm-1", 0): (
                GpuUser("team-a", "train-0", "main"),
                GpuUser("team-b", "serve-0", "main"),
            ),
            GpuRef("dcgm-9", 0): (GpuUser("team-c", "infer-0", "vllm", pod_uid="u-1"),),
            GpuRef("amd-1", 4): (GpuUser(job="77", user="bob"),),
            GpuRef("amd-1", 4, "1"): (GpuUser(job="77", user="bob"),),
        }


async def test_honored_labels_name_the_same_holders(worlds: Mapping[str, str]) -> None:
    async with opened(worlds["dcgm honored"]) as source:
        readings = await until(source, lambda r: len(r) >= 3)
        held = {readings.gpus[row].ref: [h.pod for h in hs] for row, hs in readings.holders.items()}
        assert held == {GpuRef("dcgm-1", 0): ["train-0", "serve-0"]}


async def test_faults_are_reported_with_their_codes(everything: str) -> None:
    async with opened(everything) as source:
        readings = await until(source, lambda r: len(r) >= len(ALL))
        wrong = {
            readings.gpus[row].ref: {(fault.kind, fault.code, fault.count) for fault in faults}
            for row, faults in readings.faults.items()
        }
        assert wrong == {
            GpuRef("dcgm-1", 1): {(FaultKind.ECC_UNCORRECTED, 0, 2.0)},
            # The windowed count exists, so the gauges that never clear are not read.
            GpuRef("dcgm-9", 0): {(FaultKind.XID, 48, 1.0)},
            GpuRef("amd-1", 4): {
                (FaultKind.ECC_UNCORRECTED, 0, 1.0),
                (FaultKind.FATAL_EVENT, 55, 1.0),
                (FaultKind.UNHEALTHY, 0, 1.0),
            },
            GpuRef("127.0.0.1", 6): {(FaultKind.XID, 31, 2.0), (FaultKind.RECOVERY_ACTION, 1, 1.0)},
        }


async def test_the_gauge_of_the_last_xid_is_read_without_a_better_metric(worlds: Mapping[str, str]) -> None:
    async with opened(worlds["dcgm"]) as source:
        readings = await until(source, lambda r: len(r) >= 3)
        faults = readings.faults[readings.rows[GpuRef("dcgm-1", 1)]]
        assert Fault(FaultKind.XID, 79, 1.0, faults[0].time) in faults


async def test_ratios_that_are_written_in_percent_are_not_scaled_again(worlds: Mapping[str, str]) -> None:
    async with opened(worlds["percent"]) as source:
        readings = await until(source, lambda r: len(r) >= 1)
        assert readings.value(0, Quantity.UTILIZATION) == pytest.approx(97.0)
        assert readings.value(0, Quantity.SM_ACTIVITY) == pytest.approx(0.75)


async def test_two_exporters_of_one_gpu_are_matched_by_uuid(worlds: Mapping[str, str]) -> None:
    async with opened(worlds["twins"]) as source:
        readings = await until(source, lambda r: Quantity.POWER_LIMIT in r.values and len(r) >= 3)
        row = readings.rows[GpuRef("dcgm-1", 0)]
        assert len(readings) == 3
        assert readings.value(row, Quantity.UTILIZATION) == 90.0  # DCGM comes first
        assert readings.value(row, Quantity.POWER_LIMIT) == 450.0  # only the other one has it


async def results_of(source: PrometheusSource) -> dict[str, object]:
    """Return everything a source returns, except times."""
    readings = await source.refresh()
    rows = {gpu: row for row, gpu in enumerate(readings.gpus)}
    faults = {gpu: readings.faults.get(row, ()) for gpu, row in rows.items()}
    return {
        "values": {gpu: [readings.value(row, quantity) for quantity in Q] for gpu, row in rows.items()},
        "holders": {gpu: readings.holders.get(row) for gpu, row in rows.items()},
        "faults": {gpu: {(one.kind, one.code, one.count) for one in found} for gpu, found in faults.items()},
        "processes": [replace(row, time=0.0) for row in (await source.processes()).rows],
        "storage": await source.storage(),
        "ports": await source.rdma(),
        "exporters": source.health().exporters,
        "errors": readings.errors,
    }


async def test_victoriametrics_and_prometheus_give_the_same_results(victoria: str, everything: str) -> None:
    async with opened(victoria, refresh=0.2) as source, opened(everything, refresh=0.2) as reference:
        for _ in range(200):  # both have to scrape every exporter first
            found, expected = await results_of(source), await results_of(reference)
            if all(expected[name] for name in expected.keys() - {"errors"}) and found == expected:
                break
            await asyncio.sleep(0.2)
        assert found == expected
        assert all(expected[name] for name in expected.keys() - {"errors"})
        assert not expected["errors"]
        assert len(await source.latest()) == len(ALL)


async def test_victoriametrics_returns_a_sample_immediately_and_not_half_a_minute_later() -> None:
    sampled = round(time.time()) - 2
    page = f'nvidia_gpu_utilization_percent{{node="a",gpu="0"}} 50 {sampled}\n'
    with running_victoriametrics(openmetrics=page) as url:
        async with opened(url) as source:
            readings = await source.refresh()
            row = readings.rows[GpuRef("a", 0)]
            assert readings.value(row, Quantity.UTILIZATION) == 50
            assert readings.time(row, Quantity.UTILIZATION) == sampled
