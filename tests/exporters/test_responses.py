import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.errors import MetricsUnavailable
from gpufleet.exporters.prometheus import responses
from gpufleet.exporters.prometheus.responses import decode_instant, decode_names, decode_range

TEXT = st.one_of(st.text(max_size=12), st.sampled_from(['},{"metric":', '"result":[', '\\"', "]}}", "\\"]))


def vector(series: list[tuple[dict[str, str], str]]) -> bytes:
    result = [{"metric": labels, "value": [1.5, value]} for labels, value in series]
    return json.dumps(
        {"status": "success", "data": {"resultType": "vector", "result": result}}, separators=(",", ":")
    ).encode()


@settings(max_examples=200, deadline=None)
@given(
    series=st.lists(
        st.tuples(st.fixed_dictionaries({"a": TEXT, "b": TEXT}), st.floats(allow_nan=False).map(repr)),
        max_size=12,
    ),
    cut=st.integers(1, 200),
)
def test_a_response_cut_anywhere_decodes_like_the_whole(
    series: list[tuple[dict[str, str], str]], cut: int
) -> None:
    body = vector(series)
    before, responses._SLICE = responses._SLICE, cut
    try:
        labels, values = decode_instant(body, ("a", "b", "missing"), pytest.fail)
    finally:
        responses._SLICE = before
    expected = json.loads(body)["data"]["result"]
    assert [(each.a, each.b, each.missing) for each in labels] == [
        (one["metric"]["a"], one["metric"]["b"], "") for one in expected
    ]
    assert values.tolist() == [float(one["value"][1]) for one in expected]


def test_numbers_as_prometheus_writes_them() -> None:
    _, values = decode_instant(
        vector([({}, "+Inf"), ({}, "-Inf"), ({}, "NaN"), ({}, "1e-05")]), (), pytest.fail
    )
    assert values[0] == math.inf
    assert values[1] == -math.inf
    assert math.isnan(values[2])
    assert values[3] == 1e-05


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>bad gateway</html>",
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"val',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"x"]}]}}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1]}]}}',
        b'{"status":"error","errorType":"bad_data","error":"parse error"}',
        b'{"status":"success"}',
        b'{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"\xff"},"value":[1,"1"]}]}}',
    ],
)
def test_an_invalid_response_is_refused(body: bytes) -> None:
    with pytest.raises(MetricsUnavailable):
        decode_instant(body, ("a",), pytest.fail)


@pytest.mark.parametrize(
    ("extra", "warnings"),
    [
        ({}, []),
        ({"warnings": None, "infos": None}, []),
        ({"isPartial": False}, []),
        ({"isPartial": True}, ["not all of its stores answered"]),
        (
            {
                "warnings": [
                    'PromQL info: metric might not be a counter, name does not end in _total: "a" (1:6)'
                ]
            },
            [],
        ),
        ({"warnings": ["PromQL warning: encountered a mix of histograms and floats"]}, []),
        ({"warnings": ["PromQL warning: this", "3 more warning annotations omitted"]}, []),
        (
            {"warnings": ["PromQL warning: this", "no answer from 10.0.0.7:10901"]},
            ["no answer from 10.0.0.7:10901"],
        ),
        ({"warnings": ["x" * 5000]}, ["x" * 300]),
    ],
)
def test_a_partial_response_is_reported_and_a_remark_on_the_expression_is_not(
    extra: dict[str, object], warnings: list[str]
) -> None:
    whole = json.loads(vector([({"a": "x" * 1000}, "1")] * 600))  # more than one slice
    for body in ({**whole, **extra}, {**extra, **whole}):  # VictoriaMetrics puts it first, Thanos last
        reported: list[str] = []
        labels, _ = decode_instant(json.dumps(body, separators=(",", ":")).encode(), ("a",), reported.append)
        assert len(labels) == 600
        assert reported == warnings
    reported = []
    assert decode_names(
        json.dumps({"status": "success", "data": ["a"], **extra}).encode(), reported.append
    ) == ["a"]
    assert reported == warnings


def test_a_range_lies_on_its_grid_with_gaps() -> None:
    series = {"metric": {"a": "x"}, "values": [[100, "1"], [120.0, "3"], [140, "NaN"], [999, "5"]]}
    body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [series]}}).encode()
    [(labels, row)] = decode_range(body, ("a",), 100.0, 10.0, 5, pytest.fail)
    assert labels.a == "x"
    np.testing.assert_array_equal(row, [1.0, np.nan, 3.0, np.nan, np.nan])


def test_names_are_decoded_and_an_error_is_raised() -> None:
    assert decode_names(b'{"status":"success","data":["a","b"]}', pytest.fail) == ["a", "b"]
    with pytest.raises(MetricsUnavailable, match="too many"):
        decode_names(b'{"status":"error","error":"too many"}', pytest.fail)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (b'{"metric":{},"value":[0,"1"]},' * 900_000, "more than 800000 series"),
        (b'{"metric":{},"value":[0,"1"]}, ' * 200_000, "bytes in one piece"),
        (b'{"metric":{},"value":[0,"1"],"values":[' + b'[0,"1"],' * 600_000 + b'[0,"1"]]},', "in one piece"),
    ],
)
def test_a_response_of_too_many_values_is_refused_before_they_are_decoded(
    series: bytes, message: str
) -> None:
    body = (
        b'{"status":"success","data":{"resultType":"vector","result":['
        + series
        + b'{"metric":{},"value":[0,"1"]}]}}'
    )
    tracemalloc.start()
    try:
        with pytest.raises(MetricsUnavailable, match=message):
            decode_instant(body, (), pytest.fail)
        assert tracemalloc.get_traced_memory()[1] < 250 << 20
    finally:
        tracemalloc.stop()


def test_too_many_names_are_refused() -> None:
    body = b'{"status":"success","data":[' + b'"a",' * 2_500_000 + b'"a"]}'
    with pytest.raises(MetricsUnavailable, match="in one piece"):
        decode_names(body, pytest.fail)
