import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.exporters.columns import derive, holds_percent, to_quantity_unit
from gpufleet.exporters.detection import assumed_exporters, detect_exporters
from gpufleet.exporters.known_exporters import AGENT, ALL_SMI, AMD, DCGM, KNOWN_EXPORTERS, Metric
from gpufleet.exporters.labels import gpu_index, holder_of, host_of, identify, identity_labels, key_labels
from gpufleet.exporters.prometheus.gpu_index import build_index, empty_index
from gpufleet.exporters.prometheus.responses import labels_type
from gpufleet.model.reading import GpuRef, GpuUser, Quantity
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.runtime.settings.field import settings_of


@pytest.mark.parametrize(
    ("instance", "host"),
    [
        ("10.0.0.1:9400", "10.0.0.1"),
        ("node-1", "node-1"),
        ("node-1:9400", "node-1"),
        ("[fd00::1]:9400", "fd00::1"),
        ("fd00::1", "fd00::1"),
    ],
)
def test_an_instance_is_cut_at_its_port(instance: str, host: str) -> None:
    assert host_of(instance) == host


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("0", 0),
        ("nvidia7", 7),
        ("gpu-3", 3),
        ("", None),
        ("NVIDIA A100", None),
        ("GPU-0123", 123),
        ("٣", None),
    ],
)
def test_an_index_is_parsed_in_known_spellings_only(text: str, index: int | None) -> None:
    assert gpu_index(text) == index


def test_node_comes_before_hostname_and_that_before_instance() -> None:
    labels = {"gpu": "1", "instance": "10.0.0.1:9", "Hostname": "C", "hostname": "b", "node": "a"}
    for name, node in [("node", "a"), ("hostname", "b"), ("Hostname", "C"), ("instance", "10.0.0.1")]:
        gpu = identify(DCGM, labels)
        assert gpu is not None
        assert gpu.ref == GpuRef(node, 1)
        del labels[name]
    assert identify(DCGM, labels) is None


def test_the_label_gpu_of_all_smi_is_a_model_and_amds_partition_zero_the_whole() -> None:
    gpu = identify(ALL_SMI, {"gpu": "NVIDIA L4", "gpu_index": "2", "node": "n"})
    assert gpu is not None
    assert (gpu.ref, gpu.model, gpu.vendor) == (GpuRef("n", 2), "NVIDIA_L4", "NVIDIA")
    whole = identify(AMD, {"gpu_id": "1", "hostname": "n", "gpu_partition_id": "0"})
    assert whole is not None
    assert whole.ref == GpuRef("n", 1)


def test_the_exporters_own_pod_labels_win_over_the_scrapes() -> None:
    labels = {"pod": "exporter", "namespace": "monitoring", "exported_pod": "p", "exported_namespace": "n"}
    assert holder_of({**labels, "container": "c"}) == GpuUser("n", "p", "c")
    assert holder_of({"namespace": "monitoring"}) is None
    assert holder_of({"hpc_job": "7", "namespace": "monitoring"}) == GpuUser(job="7")


def test_values_are_queried_by_the_fewest_labels_that_distinguish_gpus() -> None:
    seen = [
        {"Hostname": "a", "gpu": "0", "instance": "x:1"},
        {"Hostname": "a", "gpu": "1", "instance": "x:1"},
    ]
    assert key_labels(DCGM, seen) == ("Hostname", "gpu", "GPU_I_ID")
    mixed = [*seen, {"instance": "y:1", "device": "nvidia0"}]
    assert key_labels(DCGM, mixed) == ("Hostname", "instance", "gpu", "device", "GPU_I_ID")


def test_custom_prefixes_are_detected_and_look_alikes_are_not() -> None:
    names = ["site_gpu_gfx_activity", "site_gpu_used_vram", "workload_gpu_used_vram", "gpu_health"]
    assert [(d.definition.name, d.prefix) for d in detect_exporters(names)] == [("amd", "site_")]
    assert detect_exporters(["up", "go_goroutines"]) == ()


def test_configured_exporters_need_no_names() -> None:
    [exporter] = assumed_exporters(["dcgm"])
    assert "DCGM_FI_DEV_GPU_UTIL" in exporter.names
    assert Quantity.POWER in exporter.quantities


def test_the_setting_lists_every_exporter() -> None:
    [setting] = [s for s in settings_of("metrics", MetricsSettings) if s.name == "vocabularies"]
    assert setting.facts.choices == tuple(exporter.name for exporter in KNOWN_EXPORTERS)


def test_an_index_is_rebuilt_when_gpus_come_go_or_change() -> None:
    names = identity_labels(AGENT)
    labels = labels_type(names)

    def series(*gpus: tuple[str, str]) -> list[object]:
        return [labels(**{"node": "n", "gpu": gpu, "uuid": uuid}) for gpu, uuid in gpus]

    first = build_index(AGENT, empty_index(AGENT), series(("0", "a"), ("1", "b")), np.array([5.0, 6.0]))
    assert [gpu.uuid for gpu in first.gpus] == ["a", "b"]
    same = build_index(AGENT, first, series(("1", "b"), ("0", "a")), np.array([9.0, 8.0]))
    assert same.gpus is first.gpus
    assert same.times.tolist() == [8.0, 9.0]
    keys = [same.key(each) for each in series(("0", ""), ("1", ""))]
    again = same.with_times(keys, np.array([10.0, 11.0]))
    assert again is not None
    assert again.times.tolist() == [10.0, 11.0]
    assert same.with_times(keys[:1], np.array([10.0])) is None
    replaced = build_index(AGENT, same, series(("0", "a"), ("0", "new")), np.array([1.0, 2.0]))
    assert [gpu.uuid for gpu in replaced.gpus] == ["new"]


@given(st.lists(st.floats(), min_size=1))
def test_invalid_values_become_nan(values: list[float]) -> None:
    found = to_quantity_unit(Quantity.UTILIZATION, Metric("x"), np.array(values), percent=False)
    for value, ours in zip(values, found.tolist(), strict=True):
        if 0 <= value <= 100:
            assert ours == value
        elif 100 < value < 100.49:
            assert ours == 100
        elif not 100.49 <= value <= 100.51:  # about where rounding ends
            assert ours != ours


@given(st.floats(0, 1e12), st.floats(0, 1e12), st.floats(0, 1e12))
def test_memory_adds_up(used: float, free: float, reserved: float) -> None:
    known = {
        Quantity.MEMORY_USED: np.array([used]),
        Quantity.MEMORY_FREE: np.array([free]),
        Quantity.MEMORY_RESERVED: np.array([reserved]),
    }
    total = derive(Quantity.MEMORY_TOTAL, known)
    assert total is not None
    assert total[0] == pytest.approx(used + free + reserved)
    share = derive(Quantity.MEMORY_UTILIZATION, {**known, Quantity.MEMORY_TOTAL: total})
    assert share is not None
    assert share[0] != share[0] if total[0] == 0 else 0 <= share[0] <= 100
    assert derive(Quantity.POWER, known) is None


@pytest.mark.parametrize(
    ("values", "percent"),
    [
        ([0.2, 1.0], False),
        ([0.2, 1.02], False),  # a ratio slightly above 1
        ([0.2, 2.0**47, 9.3e18, float("inf")], False),  # not supported
        ([0.2, float("nan")], False),
        ([], False),
        ([0.2, 97.0], True),
        ([0.2, 97.0, 2.0**47], True),
    ],
)
def test_a_ratio_is_percent_only_if_a_value_proves_it(values: list[float], percent: bool) -> None:
    assert holds_percent(Metric("x", 100, ratio=True), np.array(values)) is percent
    assert not holds_percent(Metric("x"), np.array(values))
