"""Uploads are signed so that an S3-compatible store accepts them."""

import hashlib
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp.test_utils import TestServer
from tests.focus.s3_server import S3Server

from gpufleet.errors import InvalidRequest, SettingsError, Unavailable
from gpufleet.focus.s3 import S3Credentials, parse_s3_url, put_file, sign

EXAMPLE = S3Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
"""The keys of the examples in the AWS documentation."""


@pytest.fixture
async def store() -> AsyncIterator[tuple[S3Server, S3Credentials]]:
    s3 = S3Server()
    async with TestServer(s3.app(), host="127.0.0.1") as server:
        yield (
            s3,
            S3Credentials("AKID", "secret", "session", "eu-central-1", str(server.make_url("")).rstrip("/")),
        )


def test_the_signature_is_that_of_the_example_in_the_aws_documentation() -> None:
    headers = sign(
        EXAMPLE,
        "PUT",
        "https://examplebucket.s3.amazonaws.com/test%24file.text",
        {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
        hashlib.sha256(b"Welcome to Amazon S3.").hexdigest(),
        datetime(2013, 5, 24, tzinfo=UTC),
    )
    expected = "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    assert headers["authorization"].endswith(f"Signature={expected}")


@pytest.mark.parametrize("key", ["focus.csv", "a/b c/über=+&focus.csv", "x" * 900])
async def test_a_store_that_checks_signatures_accepts_the_file(
    store: tuple[S3Server, S3Credentials], tmp_path: Path, key: str
) -> None:
    s3, credentials = store
    file = tmp_path / "file"
    file.write_bytes(b"a,b\r\n" * 400_000)
    await put_file(credentials, "bucket", key, file, "text/csv")
    assert s3.objects == {f"bucket/{key}": file.read_bytes()}
    assert s3.media_types == {f"bucket/{key}": "text/csv"}


async def test_a_wrong_key_and_an_absent_bucket_are_reported_with_the_store_s_words(
    store: tuple[S3Server, S3Credentials], tmp_path: Path
) -> None:
    s3, credentials = store
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(InvalidRequest, match="SignatureDoesNotMatch"):
        await put_file(replace(credentials, secret_key="other"), "bucket", "key", file, "text/csv")
    with pytest.raises(InvalidRequest, match="NoSuchBucket"):
        await put_file(credentials, "absent", "key", file, "text/csv")
    assert not s3.objects


async def test_a_store_that_does_not_answer_is_unavailable(tmp_path: Path, unused_tcp_port: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(Unavailable, match="can't be written"):
        await put_file(
            replace(EXAMPLE, endpoint=f"http://127.0.0.1:{unused_tcp_port}"),
            "bucket",
            "key",
            file,
            "text/csv",
        )


def test_keys_and_the_endpoint_come_from_the_variables_of_the_aws_tools() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert S3Credentials.from_environment(keys).endpoint == "https://s3.us-east-1.amazonaws.com"
    named = {**keys, "AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://minio:9000/"}
    assert S3Credentials.from_environment(named) == S3Credentials(
        "a", "b", "", "eu-west-1", "http://minio:9000"
    )
    with pytest.raises(SettingsError, match="AWS_SECRET_ACCESS_KEY"):
        S3Credentials.from_environment({"AWS_ACCESS_KEY_ID": "a"})


def test_a_url_has_a_bucket_and_perhaps_a_prefix() -> None:
    assert parse_s3_url("s3://bucket") == ("bucket", "")
    assert parse_s3_url("s3://bucket/a/b/") == ("bucket", "a/b")
    with pytest.raises(SettingsError, match="no bucket"):
        parse_s3_url("s3:///a")
