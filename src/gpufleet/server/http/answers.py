"""What a handler returns, and how it becomes bytes on the wire.

A handler returns plain data, or an `Answer` where it has a message, status or header to add, or
a `Prepared` where the data was encoded once for everybody. All three take the same way out:
data between the head and tail of the family's envelope, a weak ETag over what is the caller's
(the trace id is not), gzip for those who take it.

The compressed form of a `Prepared` is kept open: deflate may be flushed to a byte boundary, and
so the few bytes of the tail, which differ from request to request, follow as one stored block
with the checksum carried on. Two megabytes are compressed once per refresh, not per caller.
"""

import asyncio
import hashlib
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from gpufleet.server.http.envelopes import Envelope
from gpufleet.server.http.request_context import Header

T = TypeVar("T")

GZIP_FROM_BYTES = 1024
_encode = msgspec.json.Encoder().encode
_ROWS_A_STEP = 1000
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
STORED_BLOCK_BYTES = 65_535


@dataclass(frozen=True)
class Answer(Generic[T]):
    """Data with a message, a status or headers of its own."""

    data: T
    message: str | None = None
    status: int = 200
    headers: Sequence[Header] = ()


class Prepared(Generic[T]):
    """Data encoded once and handed out many times: `Prepared.of(rows, message)` at each refresh."""

    __slots__ = ("_gzip", "encoded", "etag", "message")

    def __init__(self, encoded: bytes, message: str | None = None) -> None:
        self.encoded = encoded
        self.message = message
        self.etag = etag_of(encoded, message)
        self._gzip: dict[bytes, OpenGzip] = {}

    @classmethod
    def of(cls, data: T, message: str | None = None) -> "Prepared[T]":
        """Encode `data` now."""
        return cls(_encode(data), message)

    def compressed(self, family: Envelope) -> bool:
        """Whether `gzip` has nothing left to do."""
        return family.head in self._gzip

    def gzip(self, family: Envelope) -> "OpenGzip":
        """The compressed head and data for a family's envelope, made when first asked for."""
        made = self._gzip.get(family.head)
        if made is None:
            made = self._gzip[family.head] = OpenGzip.of(family.head + self.encoded)
        return made


@dataclass(frozen=True)
class Raw:
    """A body that is in no envelope (a page, a profile, the metrics of this process)."""

    body: bytes
    media_type: bytes
    status: int = 200
    headers: Sequence[Header] = ()
    compress: bool = True


@dataclass(frozen=True, slots=True)
class OpenGzip:
    """A gzip stream that still takes an ending."""

    stream: bytes
    checksum: int
    length: int

    @classmethod
    def of(cls, content: bytes, level: int = 5) -> "OpenGzip":
        """Compress `content` up to a byte boundary."""
        deflate = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        stream = deflate.compress(content) + deflate.flush(zlib.Z_SYNC_FLUSH)
        return cls(_GZIP_HEAD + stream, zlib.crc32(content), len(content))

    def ended(self, tail: bytes) -> bytes:
        """The whole stream with `tail` (at most 64 KiB) as its last, stored block."""
        if len(tail) > STORED_BLOCK_BYTES:
            raise ValueError("the tail does not fit into one stored block")
        size = len(tail)
        block = struct.pack("<BHH", 1, size, size ^ 0xFFFF)
        check = struct.pack("<II", zlib.crc32(tail, self.checksum), (self.length + size) & 0xFFFF_FFFF)
        return b"".join((self.stream, block, tail, check))


def etag_of(encoded: bytes, message: str | None) -> bytes:
    """A weak entity tag: the same data and message have the same one, in any envelope or encoding."""
    digest = hashlib.blake2b(encoded, digest_size=12)
    if message:
        digest.update(b"\0" + message.encode())
    return b'W/"' + digest.hexdigest().encode() + b'"'


def matches(if_none_match: bytes, etag: bytes) -> bool:
    """Whether a caller that sent `If-None-Match` already has the entity of `etag`."""
    wanted = etag.removeprefix(b"W/")
    return if_none_match.strip() == b"*" or any(
        given.strip().removeprefix(b"W/") == wanted for given in if_none_match.split(b",")
    )


def takes_gzip(accept_encoding: bytes) -> bool:
    """Whether `Accept-Encoding` names gzip without refusing it."""
    for part in accept_encoding.split(b","):
        coding, _, weight = part.partition(b";")
        if coding.strip().lower() in (b"gzip", b"*"):
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


async def encoded(result: Any) -> Prepared[Any]:
    """An ordinary answer in the form of a prepared one; a long list in steps, between which others are served."""
    if isinstance(result, Prepared):
        return result
    data, message = (result.data, result.message) if isinstance(result, Answer) else (result, None)
    if not isinstance(data, list) or len(data) <= _ROWS_A_STEP:
        return Prepared(_encode(data), message)
    pieces = []
    for first in range(0, len(data), _ROWS_A_STEP):
        pieces.append(_encode(data[first : first + _ROWS_A_STEP])[1:-1])
        await asyncio.sleep(0)
    return Prepared(b"[" + b",".join(pieces) + b"]", message)
