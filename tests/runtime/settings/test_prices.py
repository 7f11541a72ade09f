"""Prices in both forms, and the one that applies."""

from pathlib import Path

import pytest

from gpufleet.accounting.prices import price_of
from gpufleet.errors import SettingsError
from gpufleet.runtime.settings import AccountingSettings, load_settings
from gpufleet.runtime.settings.prices import Price

JULY = 1_782_864_000.0  # 2026-07-01T00:00:00Z


def prices(folder: Path, text: str) -> tuple[Price, ...]:
    (folder / "gpufleet.toml").write_text(text)
    return load_settings({}, {}, folder / "gpufleet.toml")[AccountingSettings].prices


def test_a_table_has_one_price_per_model(tmp_path: Path) -> None:
    text = '[accounting.prices]\n"NVIDIA H200" = 3.5\nL4 = 1\n'
    assert prices(tmp_path, text) == (Price(3.5, "NVIDIA H200"), Price(1.0, "L4"))


def test_a_variable_has_one_price_per_model() -> None:
    variable = {"GPUFLEET_ACCOUNTING_PRICES": "NVIDIA H200=3.5, L4=1"}
    found = load_settings({}, variable)[AccountingSettings].prices
    assert found == (Price(3.5, "NVIDIA H200"), Price(1.0, "L4"))


@pytest.mark.parametrize(
    "start",
    [
        "2026-07-01",
        "'2026-07-01'",
        "2026-07-01T00:00:00",
        "2026-07-01T02:00:00+02:00",
        "'2026-07-01T00:00:00Z'",
    ],
)
def test_a_list_has_models_sources_and_dates(tmp_path: Path, start: str) -> None:
    text = f"""
[accounting]
currency = "EUR"
[[accounting.prices]]
price = 1
[[accounting.prices]]
model = "NVIDIA H200"
source = "slurm"
from = {start}
price = 3.1
"""
    assert prices(tmp_path, text) == (Price(1.0), Price(3.1, "NVIDIA H200", "slurm", JULY))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("prices = { L4 = -1 }", "name=amount pairs"),
        ("prices = { L4 = 'x' }", "name=amount pairs"),
        ("prices = { L4 = true }", "name=amount pairs"),
        ("prices = 'L4'", "name=amount pairs"),
        ("prices = [3]", "a list of {model, source, from, price}"),
        ("prices = [{ model = 'L4' }]", "a list of {model, source, from, price}"),
        ("prices = [{ modell = 'L4', price = 1 }]", "a list of {model, source, from, price}"),
        ("prices = [{ model = 4, price = 1 }]", "a list of {model, source, from, price}"),
        ("prices = [{ source = 'cloud', price = 1 }]", "a source of k8s, slurm, docker, local"),
        ("prices = [{ from = 'soon', price = 1 }]", "a date or time for from"),
        ("prices = [{ from = 7, price = 1 }]", "a date or time for from"),
        ("prices = [{ price = 1 }, { price = 2 }]", "one price for each model, source and from"),
    ],
)
def test_a_wrong_price_list_names_what_it_takes(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(SettingsError) as refusal:
        prices(tmp_path, f"[accounting]\n{text}\n")
    assert "setting accounting.prices" in str(refusal.value)
    assert part in str(refusal.value)


def test_the_most_specific_price_applies_from_its_date_on() -> None:
    listed = (
        Price(1.0),
        Price(2.0, source="slurm"),
        Price(3.0, model="H200"),
        Price(4.0, model="H200", start=JULY),
        Price(5.0, model="H200", source="slurm", start=JULY),
    )
    before, after = int(JULY) - 3600, int(JULY)
    assert price_of(listed, "L4", "k8s", after) == 1.0
    assert price_of(listed, "L4", "slurm", after) == 2.0
    assert [price_of(listed, "H200", "k8s", hour) for hour in (before, after)] == [3.0, 4.0]
    assert [price_of(listed, "H200", "slurm", hour) for hour in (before, after)] == [3.0, 5.0]
    assert price_of((), "H200", "slurm", after) == 0.0


@pytest.mark.parametrize(
    "spelling", ["NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3", "nvidia_h100_80gb_hbm3"]
)
def test_a_price_applies_to_every_spelling_of_its_model(spelling: str) -> None:
    for billed in ("NVIDIA_H100_80GB_HBM3", "NVIDIA-H100-80GB-HBM3"):
        assert price_of((Price(2.8, spelling), Price(1.0)), billed, "k8s", 0) == 2.8


def test_a_short_name_is_the_price_of_all_forms_without_one_of_their_own() -> None:
    listed = (Price(9.0, "h100", start=5.0), Price(2.8, "NVIDIA H100 80GB HBM3"))
    assert price_of(listed, "NVIDIA_H100_80GB_HBM3", "k8s", 3600) == 2.8
    assert price_of(listed, "NVIDIA_H100_PCIe", "k8s", 3600) == 9.0
    assert price_of(listed, "NVIDIA_H200", "k8s", 3600) == 0.0
