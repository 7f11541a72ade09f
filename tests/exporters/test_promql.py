import json
import urllib.parse
import urllib.request
from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.exporters.prometheus.promql import by, literal, names_selector, one_of, without

VALUES = st.one_of(
    st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20),
    st.text(alphabet="\\\"\n{}|.*()[]^$,=~`'x", max_size=20),
)


def evaluate(url: str, expression: str) -> list[dict[str, str]]:
    data = urllib.parse.urlencode({"query": expression}).encode()
    with urllib.request.urlopen(f"{url}/api/v1/query", data, timeout=10) as answer:
        return [series["metric"] for series in json.load(answer)["data"]["result"]]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_prometheus_reads_back_exactly_the_value_that_a_literal_means(
    worlds: Mapping[str, str], value: str
) -> None:
    # absent() answers with the labels of the matchers: what Prometheus understood.
    found = evaluate(worlds["all-smi"], f"absent(nothing{{x={literal(value)}}})")
    assert found == [{"x": value} if value else {}]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.sets(VALUES, min_size=1, max_size=4), other=VALUES)
def test_one_of_matches_its_values_and_nothing_else(
    worlds: Mapping[str, str], values: set[str], other: str
) -> None:
    for value in {*values, other}:
        tagged = f'label_replace(absent(nothing{{x={literal(value)}}}), "hit", "yes", "x", {one_of(values)})'
        hit = evaluate(worlds["all-smi"], tagged)[0].get("hit") == "yes"
        assert hit == (value in values)


def test_a_name_from_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="not the name"):
        names_selector(["up} or vector(1"])
    with pytest.raises(ValueError, match="not the name"):
        names_selector(["a", "b|c"])


def test_expressions_read_as_promql() -> None:
    assert names_selector(["a", "b"]) == '{__name__=~"a|b"}'
    assert by("max", ["a", "b"], "up") == "max by (a, b) (up)"
    assert without("x", ["a"], []) == "x"
    assert without("x", ["a"], ["y", "z"]) == "(x) unless on (a) (y or z)"
