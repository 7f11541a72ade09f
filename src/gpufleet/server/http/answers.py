"""What a handler returns, and how it is encoded.

A handler returns plain data, an `Answer` to set a message or headers, a `Prepared` for data
encoded once for many callers, or a `Raw` body without an envelope.

A `Prepared` is also compressed once. The end of the envelope differs from request to request (the trace
id), so the deflate stream is flushed to a byte boundary and kept open; the tail is appended as a stored
block and the checksum continued. Two megabytes are compressed once per refresh, not once per caller.
"""

import asyncio
import hashlib
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec

from gpufleet.server.http.envelopes import Envelope

T = TypeVar("T")

GZIP_MIN_BYTES = 1024
_MAX_STORED_BLOCK = 65_535
_ROWS_PER_STEP = 1000
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Answer(Generic[T]):
    """Data with a message or headers."""

    data: T
    message: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Prepared(Generic[T]):
    """Data encoded once for many callers: create one with `Prepared.of(rows, message)` at each refresh."""

    __slots__ = ("_gzip", "encoded", "etag", "message")

    def __init__(self, encoded: bytes, message: str | None = None) -> None:
        self.encoded = encoded
        self.message = message
        self.etag = etag_of(encoded, message)
        self._gzip: dict[bytes, OpenGzip] = {}

    @classmethod
    def of(cls, data: T, message: str | None = None) -> "Prepared[T]":
        """Encode `data`."""
        return cls(_encode(data), message)

    def is_compressed(self, envelope: Envelope) -> bool:
        """Return whether `gzip` is already done for `envelope`."""
        return envelope.head in self._gzip

    def gzip(self, envelope: Envelope) -> "OpenGzip":
        """Return head and data compressed; compress them on first use."""
        compressed = self._gzip.get(envelope.head)
        if compressed is None:
            compressed = self._gzip[envelope.head] = OpenGzip.of(envelope.head + self.encoded)
        return compressed


@dataclass(frozen=True)
class Raw:
    """A body without an envelope, such as a page or a profile."""

    body: bytes
    media_type: str
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenGzip:
    """A gzip stream that still lacks its end."""

    stream: bytes
    checksum: int
    length: int

    @classmethod
    def of(cls, content: bytes, level: int = 5) -> "OpenGzip":
        """Compress `content` up to a byte boundary."""
        deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        stream = deflate.compress(content) + deflate.flush(zlib.Z_SYNC_FLUSH)
        return cls(_GZIP_HEAD + stream, zlib.crc32(content), len(content))

    def close(self, tail: bytes) -> bytes:
        """Return the whole stream, with `tail` in stored blocks at its end."""
        blocks = [tail[at : at + _MAX_STORED_BLOCK] for at in range(0, len(tail), _MAX_STORED_BLOCK)] or [b""]
        parts = [self.stream]
        for number, block in enumerate(blocks, 1):
            is_last = number == len(blocks)
            parts += (struct.pack("<BHH", is_last, len(block), len(block) ^ 0xFFFF), block)
        length = (self.length + len(tail)) & 0xFFFF_FFFF
        parts.append(struct.pack("<II", zlib.crc32(tail, self.checksum), length))
        return b"".join(parts)


def etag_of(encoded: bytes, message: str | None = None) -> str:
    """Return a weak entity tag over data and message, the same for every envelope and encoding."""
    digest = hashlib.blake2b(encoded, digest_size=12)
    if message:
        digest.update(b"\0" + message.encode())
    return f'W/"{digest.hexdigest()}"'


def etag_matches(if_none_match: bytes, etag: str) -> bool:
    """Return whether an `If-None-Match` header names `etag`, by weak comparison."""
    opaque = etag.removeprefix("W/").encode()
    return if_none_match.strip() == b"*" or any(
        given.strip().removeprefix(b"W/") == opaque for given in if_none_match.split(b",")
    )


async def encode(result: Any) -> Prepared[Any]:
    """Encode what a handler returned. Encode a long list in steps, so that other requests run between them."""
    if isinstance(result, Prepared):
        return result
    data, message = (result.data, result.message) if isinstance(result, Answer) else (result, None)
    if not isinstance(data, list) or len(data) <= _ROWS_PER_STEP:
        return Prepared(_encode(data), message)
    pieces = []
    for first in range(0, len(data), _ROWS_PER_STEP):
        pieces.append(_encode(data[first : first + _ROWS_PER_STEP])[1:-1])
        await asyncio.sleep(0)
    return Prepared(b"[" + b",".join(pieces) + b"]", message)
