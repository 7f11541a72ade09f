"""Upload billing files to a real S3-compatible store."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e import s3
from e2e.cluster import Unavailable
from e2e.cluster.cluster import free_ports
from e2e.conftest import progress_printer
from gpufleet.errors import InvalidRequest
from gpufleet.focus.s3 import S3Credentials, put_file

KEY = "gpu fleet/2026-10/focus-prod+east (ä).csv"


@pytest.fixture(scope="module")
def program(pytestconfig: pytest.Config) -> Path:
    """Return the store. Skip the test without it."""
    try:
        return s3.find(progress_printer(pytestconfig))
    except Unavailable as reason:
        pytest.skip(f"no S3 store: {reason}")


@pytest.fixture
def store(program: Path, tmp_path: Path) -> Iterator[tuple[S3Credentials, Path]]:
    """Run the store with the bucket `bills`; return its credentials and directory."""
    folder = tmp_path / "store"
    (folder / "bills").mkdir(parents=True)
    with s3.serving(program, free_ports(1)[0], folder) as address:
        yield S3Credentials(s3.ACCESS_KEY, s3.SECRET_KEY, endpoint=address), folder


async def test_the_store_accepts_the_signature_and_has_every_byte(
    store: tuple[S3Credentials, Path], tmp_path: Path
) -> None:
    credentials, folder = store
    file = tmp_path / "focus.csv"
    file.write_bytes(b"BilledCost,Tags\n" + b"42,ok\n" * 2_000_000)
    await put_file(credentials, "bills", KEY, file, "text/csv")
    written = (folder / "bills" / KEY).read_bytes()
    assert hashlib.sha256(written).digest() == hashlib.sha256(file.read_bytes()).digest()
    file.write_bytes(b"replaced")
    await put_file(credentials, "bills", KEY, file, "text/csv")
    assert (folder / "bills" / KEY).read_bytes() == b"replaced"


@pytest.mark.parametrize(
    ("secret", "bucket", "code"),
    [("wrong", "bills", "SignatureDoesNotMatch"), (s3.SECRET_KEY, "absent", "NoSuchBucket")],
)
async def test_what_the_store_refuses_is_said(
    store: tuple[S3Credentials, Path], tmp_path: Path, secret: str, bucket: str, code: str
) -> None:
    credentials = S3Credentials(s3.ACCESS_KEY, secret, endpoint=store[0].endpoint)
    file = tmp_path / "focus.csv"
    file.write_bytes(b"x")
    with pytest.raises(InvalidRequest, match=code):
        await put_file(credentials, bucket, "focus.csv", file, "text/csv")
