from datetime import UTC, datetime
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.server.conftest import Client, Hours, Paged

from gpufleet.errors import InvalidRequest
from gpufleet.server.http.query import QueryReader, unknown_parameter_warnings

paged, hours = QueryReader(Paged), QueryReader(Hours)


def test_values_are_typed_and_repeated_parameters_become_lists() -> None:
    read, unknown = paged.read(b"pageNum=7&orderBy=end_at&kind=Job&kind=Pod")
    assert read == Paged(7, "end_at", ["Job", "Pod"])
    assert unknown == []


def test_an_empty_value_counts_as_absent() -> None:
    assert paged.read(b"pageNum=&orderBy=&kind=")[0] == Paged()


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (b"pageNum=x", "parameter pageNum: 'x' is not valid; it takes a whole number from 1 to 1000"),
        (b"pageNum=1001", "parameter pageNum: '1001' is not valid; it takes a whole number from 1 to 1000"),
        (b"orderBy=up", "parameter orderBy: 'up' is not valid; it takes one of end_at, start_at"),
        (b"orderBy=null", "parameter orderBy: 'null' is not valid; it takes one of end_at, start_at"),
        (b"pageNum=1&pageNum=2", "parameter pageNum: given more than once; it takes one value"),
        (b"kind=%00", "the query contains a NUL character, which no parameter takes"),
        (b"kind=%ff", "the query is not valid UTF-8; percent-encode it"),
        (b"kind=\xff", "the query is not valid UTF-8; percent-encode it"),
        (b"a=1&" * 201, "the query has more than 200 parameters"),
    ],
)
def test_the_error_names_the_parameter_and_its_valid_values(query: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        paged.read(query)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            "end_time=2025-01-01T00:00:00Z",
            "parameter start_time is missing; it takes a date and time such as 2025-11-05T00:00:00Z",
        ),
        (
            "start_time=2025-01-02T00:00:00Z&end_time=2025-01-01T00:00:00Z",
            "start_time must not be after end_time",
        ),
        ("start_time=0001-01-01T00:00:00%2B08:00&end_time=2025-01-01T00:00:00Z", "parameter start_time: "),
        ("start_time=2025-01-01T00:00:00&end_time=2025-01-01T00:00:00Z", "parameter start_time: "),
        (
            "start_time=20250101&end_time=2025-01-01T00:00:00Z",
            "parameter start_time: '20250101' is not valid",
        ),
        ("start_time=1700000000&end_time=2025-01-01T00:00:00Z", "parameter start_time: '1700000000'"),
        ("start_time=1e9&end_time=2025-01-01T00:00:00Z", "parameter start_time: '1e9'"),
        (
            "start_time=2025-01-01T00:00:00Z&end_time=2025-01-01T00:00:00Z&weight=nan",
            "parameter weight: 'nan'",
        ),
        (
            "start_time=2025-01-01T00:00:00Z&end_time=2025-01-01T00:00:00Z&weight=inf",
            "parameter weight: 'inf'",
        ),
    ],
)
def test_unusable_times_and_numbers_are_refused(query: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        hours.read(query.encode())
    assert str(refusal.value).startswith(message)


def test_times_are_converted_to_utc_even_with_an_unescaped_plus() -> None:
    read, _ = hours.read(b"start_time=2025-11-05T08:00:00+08:00&end_time=2025-11-05T02:00:00%2B01:00")
    assert read.start_time == datetime(2025, 11, 5, tzinfo=UTC)
    assert (read.start_time.tzinfo, read.end_time.hour) == (UTC, 1)


@given(st.lists(st.tuples(st.text(), st.text()), max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_query_is_read_or_refused_without_a_crash(given_pairs: list[tuple[str, str]]) -> None:
    query = urlencode([(a.encode("utf-8", "replace"), b.encode("utf-8", "replace")) for a, b in given_pairs])
    try:
        _, unknown = paged.read(query.encode())
    except InvalidRequest:
        return
    for warning in unknown_parameter_warnings(unknown, list(paged.fields)):
        assert warning.isascii()
        assert not set(warning) & set(b"\r\n\0")
        assert warning.count(b'"') == 2


async def test_an_unknown_parameter_is_ignored_and_named_in_a_warning(client: Client) -> None:
    async with client() as http:
        answer = await http.get("/api/clusters/rows?pagenum=3&zzz=1")
        none = await http.get("/api/clusters/rows?pageNum=3")
    assert answer.json()["data"]["pageNum"] == 1
    assert answer.headers.get_list("warning") == [
        "299 gpufleet \"unknown query parameter 'pagenum' was ignored; did you mean 'pageNum'?\"",
        "299 gpufleet \"unknown query parameter 'zzz' was ignored\"",
    ]
    assert "warning" not in none.headers


async def test_a_route_without_parameters_warns_about_every_parameter(client: Client) -> None:
    async with client() as http:
        answer = await http.get("/api/healthz?x=1")
    assert answer.status_code == 200
    assert "'x'" in answer.headers["warning"]
