"""Kubernetes quantities."""

import pytest

from gpufleet.kubernetes.quantities import parse_count, parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [("2", 2.0), ("500m", 0.5), ("1Gi", 2.0**30), ("1.5", 1.5), (".5", 0.5), ("1e3", 1000.0), ("2E", 2e18)],
)
def test_quantities_are_read_as_kubernetes_writes_them(text: str, number: float) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "nonsense", "1.2.3", ".", "-1", "1ki", "8i", "9" * 400, "²"])
def test_a_malformed_quantity_is_nothing(text: str) -> None:
    assert parse_quantity(text) == 0


def test_gpus_are_counted_in_whole_numbers() -> None:
    assert [parse_count(text) for text in ("8", "8000m", "2k", "x")] == [8, 8, 2000, 0]
