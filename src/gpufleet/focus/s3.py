"""Put a file into an S3-compatible store with one signed request (AWS Signature Version 4).

Written by hand because botocore is 25 MB for one request. Addresses are path-style (`ENDPOINT/BUCKET/KEY`), which
MinIO, Ceph and AWS all accept. One PUT takes up to 5 GB; a month of a large fleet has some hundred megabytes.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from gpufleet.errors import InvalidRequest, SettingsError, Unavailable
from gpufleet.runtime.response_body import BodyReader

_CHUNK = 1024 * 1024
_MAX_REASON_BYTES = 64 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=300)


@dataclass(frozen=True)
class S3Credentials:
    """Who writes, and where the store is."""

    access_key: str
    secret_key: str
    session_token: str = ""
    region: str = "us-east-1"
    endpoint: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "S3Credentials":
        """Read the variables that the AWS tools use."""
        missing = [
            name for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY") if not environment.get(name)
        ]
        if missing:
            raise SettingsError(f"s3:// needs the environment variable {' and '.join(missing)}")
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
        return cls(
            environment["AWS_ACCESS_KEY_ID"],
            environment["AWS_SECRET_ACCESS_KEY"],
            environment.get("AWS_SESSION_TOKEN", ""),
            region,
            (endpoint or f"https://s3.{region}.amazonaws.com").rstrip("/"),
        )


def parse_s3_url(url: str) -> tuple[str, str]:
    """Return the bucket and the prefix of `s3://BUCKET/PREFIX`."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    if not bucket:
        raise SettingsError(f"--to: {url!r} has no bucket; it takes s3://BUCKET/PREFIX")
    return bucket, prefix.strip("/")


async def put_file(credentials: S3Credentials, bucket: str, key: str, file: Path, media_type: str) -> str:
    """Upload `file` and return its address; raise Unavailable or InvalidRequest if the store refuses it."""
    address = f"{credentials.endpoint}/{quote(bucket)}/{quote(key)}"
    size, digest = _size_and_sha256(file)
    headers = {"content-type": media_type, "content-length": str(size)}
    signed = sign(credentials, "PUT", address, headers, digest, datetime.now(UTC))
    url = URL(address, encoded=True)  # as it was signed
    try:
        async with aiohttp.ClientSession(timeout=_TIMEOUT) as session:
            with file.open("rb") as body:
                async with session.put(url, data=body, headers=signed, allow_redirects=False) as answer:
                    if answer.status == 200:
                        return address
                    reason = await BodyReader(_MAX_REASON_BYTES, Unavailable).read(answer)
                    said = reason.decode("utf-8", "replace")[:300]
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise Unavailable(f"{address} can't be written: {error}") from error
    kind = Unavailable if answer.status >= 500 else InvalidRequest
    raise kind(f"{address} was refused with status {answer.status}: {said}")


def sign(
    credentials: S3Credentials,
    method: str,
    address: str,
    headers: Mapping[str, str],
    payload_sha256: str,
    now: datetime,
) -> dict[str, str]:
    """Return the headers with those that authenticate the request."""
    url = urlsplit(address)
    stamp = f"{now:%Y%m%dT%H%M%SZ}"
    complete = {
        **headers,
        "host": url.netloc,
        "x-amz-content-sha256": payload_sha256,
        "x-amz-date": stamp,
        **({"x-amz-security-token": credentials.session_token} if credentials.session_token else {}),
    }
    names = sorted(name for name in complete if name != "content-length")
    canonical = "\n".join(
        [
            method,
            url.path,
            url.query,
            *(f"{name}:{complete[name].strip()}" for name in names),
            "",
            ";".join(names),
            payload_sha256,
        ]
    )
    scope = f"{now:%Y%m%d}/{credentials.region}/s3/aws4_request"
    text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    complete["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={credentials.access_key}/{scope},"
        f"SignedHeaders={';'.join(names)},Signature={signature}"
    )
    return complete


def _size_and_sha256(file: Path) -> tuple[int, str]:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            digest.update(chunk)
        return opened.tell(), digest.hexdigest()
