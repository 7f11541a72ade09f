import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.model.gpu_models import (
    MODELS,
    UNKNOWN_MODEL,
    accepted_models,
    canonical_model,
    more_exact,
    short_model,
    single_model,
)

ALIASES = [(spelling, model.name) for model in MODELS for spelling in (model.name, *model.aliases)]
WORDS = st.sampled_from(
    ["NVIDIA", "Tesla", "H100", "80GB", "SHARED", "MIG", "1g.5gb", "rtx", "ß", "Foo", " ", "-", "_"]
)
H100 = "NVIDIA_H100_80GB_HBM3"


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("NVIDIA-H100-80GB-HBM3", H100),
        ("NVIDIA H100 80GB HBM3", H100),
        ("nvidia_h100_80gb_hbm3", H100),
        ("h100_80gb", H100),
        ("NVIDIA-H100-80GB-HBM3-SHARED", H100),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", H100),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", H100),
        ("h100", "NVIDIA_H100"),
        ("a100_80gb", "NVIDIA_A100_SXM4_80GB"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA_A100_SXM4_80GB"),
        ("NVIDIA_A100-SXM4-80GB", "NVIDIA_A100_SXM4_80GB"),
        ("nvidia-tesla-t4", "NVIDIA_Tesla_T4"),
        ("Tesla V100-SXM2-32GB", "NVIDIA_Tesla_V100_SXM2_32GB"),
        ("AMD Instinct MI300X", "AMD_Instinct_MI300X_OAM"),
        ("AMD Instinct MI300X OAM", "AMD_Instinct_MI300X_OAM"),
        ("AMD MI300X", "AMD_Instinct_MI300X_OAM"),
        ("MI300X", "AMD_Instinct_MI300X_OAM"),
        ("unknown", UNKNOWN_MODEL),
        ("", ""),
    ],
)
def test_every_source_spells_a_model_in_its_own_way(spelling: str, name: str) -> None:
    assert canonical_model(spelling) == name


@pytest.mark.parametrize(("spelling", "name"), ALIASES)
def test_every_alias_maps_to_its_model_in_any_case_and_with_any_separator(spelling: str, name: str) -> None:
    for separator in (" ", "-", "_", "  "):
        spelt = spelling.replace("_", " ").replace(" ", separator)
        assert {canonical_model(text) for text in (spelt, spelt.upper(), spelt.lower())} == {name}


def test_no_spelling_belongs_to_two_models() -> None:
    assert all(canonical_model(spelling) == name for spelling, name in ALIASES)
    assert len({name for _, name in ALIASES}) == len(MODELS)


@given(st.text() | st.lists(WORDS).map("".join))
def test_a_canonical_name_stays_as_it_is(name: str) -> None:
    once = canonical_model(name)
    assert canonical_model(once) == once


@given(st.from_regex(r"[A-Za-z0-9]+([ _-][A-Za-z0-9]+){0,3}", fullmatch=True))
def test_an_unlisted_name_is_never_dropped_and_has_one_form(name: str) -> None:
    assert canonical_model(name)
    assert canonical_model(name.lower().replace(" ", "-")) == canonical_model(name)


def test_a_short_name_stands_for_every_form_of_the_model() -> None:
    assert accepted_models("h100") >= {"NVIDIA_H100", H100, "NVIDIA_H100_PCIe", "NVIDIA_H100_NVL"}
    assert accepted_models("NVIDIA-H100-80GB-HBM3") == {H100}
    assert short_model(H100) == "NVIDIA_H100"
    assert short_model("NVIDIA_L4") == ""


def test_a_short_name_gives_way_to_a_more_exact_one() -> None:
    assert more_exact("NVIDIA_H100", H100) == H100
    assert more_exact(H100, "NVIDIA_H100") == H100
    assert more_exact("", H100) == H100
    assert more_exact(H100, "NVIDIA_L4") == H100
    assert single_model(["NVIDIA_H100", H100, ""]) == H100
    assert single_model([H100, "NVIDIA_L4"]) == ""
    assert single_model([]) == ""
