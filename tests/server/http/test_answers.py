import gzip
import json

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.server.conftest import Client

from gpufleet.server.http.answers import Answer, OpenGzip, Prepared, encode, etag_matches, etag_of
from gpufleet.server.http.envelopes import ENVELOPES, envelope_of


@given(st.binary(max_size=5000), st.binary(max_size=300))
@example(b"content", b"t" * 200_000)
@settings(max_examples=100, deadline=None)
def test_an_open_gzip_closed_with_a_tail_decompresses_to_content_and_tail(
    content: bytes, tail: bytes
) -> None:
    assert gzip.decompress(OpenGzip.of(content).close(tail)) == content + tail


@given(
    st.recursive(st.none() | st.text() | st.integers(-(2**53), 2**53), st.lists),
    st.none() | st.text(),
)
@settings(max_examples=100, deadline=None)
def test_every_envelope_carries_the_data_unchanged(data: object, message: str | None) -> None:
    prepared: Prepared[object] = Prepared.of(data, message)
    for each in ENVELOPES:
        body = json.loads(each.head + prepared.encoded + each.tail(message, "a" * 32))
        assert body["data"] == data
        zipped = gzip.decompress(prepared.gzip(each).close(each.tail(message, "a" * 32)))
        assert json.loads(zipped) == body


@given(st.lists(st.integers() | st.text() | st.lists(st.booleans()), max_size=5), st.integers(0, 900))
@settings(max_examples=50, deadline=None)
async def test_a_long_list_encoded_in_steps_equals_one_encoded_whole(some: list[object], times: int) -> None:
    data = some * times
    assert (await encode(data)).encoded == msgspec.json.encode(data)
    answer = await encode(Answer(data, "message"))
    assert (answer.encoded, answer.message) == (msgspec.json.encode(data), "message")


@pytest.mark.parametrize(
    ("path", "envelope"),
    [
        ("/api/clusters", "clusters"),
        ("/api/clusters/overview", "clusters"),
        ("/api/workloads", "clusters"),
        ("/api/workloadMetadata", "clusters"),
        ("/api/workloadsX", "live"),
        ("/api/v1/gpu-aggregation/x", "aggregation"),
        ("/api/v1/gpu-aggregationX", "live"),
        ("/api/v1/gpu/metrics", "live"),
        ("/api/healthz", "live"),
        ("/", "live"),
    ],
)
def test_a_path_has_the_envelope_of_its_prefix(path: str, envelope: str) -> None:
    assert envelope_of(path).name == envelope


def test_an_entity_tag_covers_data_and_message_and_is_compared_weakly() -> None:
    tag = etag_of(b"[1]", "one")
    assert tag == etag_of(b"[1]", "one")
    assert len({tag, etag_of(b"[1]", "two"), etag_of(b"[2]", "one"), etag_of(b"[1]", None)}) == 4
    assert etag_matches(tag.encode(), tag)
    assert etag_matches(b'"x", ' + tag.removeprefix("W/").encode(), tag)
    assert etag_matches(b"*", tag)
    assert not etag_matches(b'"x"', tag)


@pytest.mark.parametrize("path", ["/api/v1/gpu/metrics", "/api/workloads/abc", "/openapi.json"])
async def test_a_matching_if_none_match_gets_a_304_without_a_body(client: Client, path: str) -> None:
    async with client() as http:
        first = await http.get(path)
        second = await http.get(path, headers={"if-none-match": first.headers["etag"]})
        third = await http.get(path, headers={"if-none-match": '"else"'})
    assert (first.status_code, second.status_code, third.status_code) == (200, 304, 200)
    assert second.content == b""
    assert second.headers["etag"] == first.headers["etag"]


async def test_a_large_answer_is_compressed_and_a_small_one_is_not(client: Client) -> None:
    async with client() as http:
        large = await http.get("/api/v1/gpu/metrics")
        plain = await http.get("/api/v1/gpu/metrics", headers={"accept-encoding": "identity"})
        small = await http.get("/api/workloads/abc")
    assert large.headers["content-encoding"] == "gzip"
    assert int(large.headers["content-length"]) < len(plain.content) / 3
    assert "content-encoding" not in plain.headers
    assert large.json() == plain.json()
    assert "content-encoding" not in small.headers
    assert msgspec.json.decode(plain.content)["message"] == "500 GPUs"
