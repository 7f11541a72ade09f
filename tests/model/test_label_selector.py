import pytest

from gpufleet.model.label_selector import parse_label_selector

LABELS = {"team": "nlp", "example.com/tier": "gold", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "accepted"),
    [
        ("", True),
        ("team=nlp", True),
        ("team==nlp,empty=", True),
        ("team = nlp , example.com/tier in (gold, silver)", True),
        ("team!=nlp", False),
        ("other!=x", True),
        ("team notin (nlp,vision)", False),
        ("other notin (x)", True),
        ("team", True),
        ("!team", False),
        ("!other,team", True),
        ("team=vision", False),
    ],
)
def test_a_selector_accepts_what_kubectl_would(selector: str, accepted: bool) -> None:
    assert parse_label_selector(selector)(LABELS) is accepted


@pytest.mark.parametrize(
    "selector", ["=nlp", "team=a=b", "team in nlp", "!team=nlp", "team nlp", ",", "team in (a"]
)
def test_a_wrong_selector_is_refused_with_how_to_write_one(selector: str) -> None:
    with pytest.raises(ValueError, match="is not a label selector; write key=value"):
        parse_label_selector(selector)
