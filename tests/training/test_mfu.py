import pytest

from gpufleet.model.reading import TrainingPoint
from gpufleet.training.mfu import flops_per_token, step_means, tflops_and_mfu
from gpufleet.training.peak_tflops import PEAKS, peak_tflops


@pytest.mark.parametrize(
    ("model", "precision", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 16, 989.4),
        ("NVIDIA H100 PCIe", 16, 756),
        ("NVIDIA_H200", 8, 1978.9),
        ("NVIDIA A100-SXM4-80GB", 16, 312),
        ("NVIDIA A100-SXM4-80GB", 8, None),
        ("NVIDIA L40S", 16, 362.05),
        ("NVIDIA L40", 16, 181.05),
        ("NVIDIA GB200", 16, 2500),
        ("NVIDIA B200", 4, 9000),
        ("AMD_Instinct_MI300X_OAM", 16, 1307.4),
        ("AMD Instinct MI250X/MI250", 16, 191.5),
        ("AMD Instinct MI355X", 8, 5033.2),
        ("NVIDIA GeForce GT 1030", 16, None),
        ("", 16, None),
    ],
)
def test_a_gpus_peak_is_found_by_its_name(model: str, precision: int, peak: float | None) -> None:
    assert peak_tflops(model, precision) == peak


def test_every_line_of_the_table_is_reached_by_its_own_name() -> None:
    assert all(peak_tflops(name, 16) == peaks[16] for name, peaks in PEAKS)


def point(metric: str, value: float, at: float = 60.0, rank: int | None = None) -> TrainingPoint:
    return TrainingPoint(metric, value, at, rank)


def test_reported_tflops_are_used_and_give_the_mfu() -> None:
    tflops, mfu = tflops_and_mfu([point("TFLOPS", 494.7)], {"NVIDIA_H200": 8})
    assert tflops == point("tflops", 494.7)
    assert mfu.metric == "mfu"
    assert mfu.value == pytest.approx(0.5)


def test_tokens_and_parameters_give_tflops() -> None:
    points = [point("parameters", 7e9, 0.0), point("tokens_per_second", 80_000)]
    tflops, mfu = tflops_and_mfu(points, {"NVIDIA H100 80GB HBM3": 8})
    assert tflops.value == pytest.approx(6 * 7e9 * 80_000 / 8 / 1e12)
    assert mfu.value == pytest.approx(tflops.value / 989.4)
    (of_one,) = tflops_and_mfu([point("num_parameters", 7e9), point("tps", 10_000)], {"GT 1030": 8})
    assert of_one.value == pytest.approx(6 * 7e9 * 10_000 / 1e12)


def test_attention_counts_where_its_size_is_reported() -> None:
    facts = {"parameters": 7e9, "layers": 32.0, "hidden_size": 4096.0, "sequence_length": 8192.0}
    assert flops_per_token(facts) == 6 * 7e9 + 12 * 32 * 4096 * 8192
    assert flops_per_token({"parameters": 7e9, "layers": 32.0}) == 6 * 7e9
    assert flops_per_token({}) is None


def test_two_models_and_another_precision() -> None:
    points = [point("tflops", 300.0), point("precision_bits", 8)]
    _, mfu = tflops_and_mfu(points, {"NVIDIA H100": 2, "NVIDIA L40S": 2})
    assert mfu.value == pytest.approx(300 / ((1978.9 + 733) / 2))
    assert [p.metric for p in tflops_and_mfu(points, {"NVIDIA H100": 2, "GT 1030": 1})] == ["tflops"]


def test_reported_values_are_not_computed_again() -> None:
    points = [
        point("parameters", 7e9),
        point("tokens_per_second", 1e5),
        point("tflops", 100),
        point("mfu", 0.3),
    ]
    found = tflops_and_mfu(points, {"NVIDIA H100": 8})
    assert sorted(found) == [point("mfu", 0.3), point("tflops", 100)]


def test_ranks_are_averaged() -> None:
    points = [point("tflops", 400, 61, 0), point("tflops", 500, 62, 1), point("tflops", 300, 125, 0)]
    assert step_means(points, 60, 60) == [(450.0, 60), (300.0, 120)]
