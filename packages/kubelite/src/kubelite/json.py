"""The JSON object type and the encoder for everything the server sends."""

from typing import Any

import msgspec

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode


def encode(value: Any) -> bytes:
    """Return the JSON bytes of a value."""
    return _encode(value)
