"""Read and write the few protobuf messages that the agent exchanges with the kubelet.

Their fields are strings, booleans and messages. Written by hand, because the protobuf runtime would cost each
node more memory than these lines (see `pod_resources.py`).
"""

from collections.abc import Iterator


def text(message: bytes, number: int) -> str:
    """Return the string with that field number, or an empty one."""
    return next((value.decode(errors="replace") for value in fields(message, number)), "")


def flag(message: bytes, number: int) -> bool:
    """Return whether the boolean with that field number is true."""
    return any(key == number and value for key, value in _numbers(message))


def fields(message: bytes, number: int) -> Iterator[bytes]:
    """Yield the strings and sub-messages with that field number, and skip all other fields."""
    for key, value in _walk(message):
        if key == number and isinstance(value, bytes):
            yield value


def message(number: int, content: bytes) -> bytes:
    """Return a field with a sub-message."""
    return _encoded(number << 3 | 2) + _encoded(len(content)) + content


def string(number: int, content: str) -> bytes:
    """Return a field with a string; nothing for an empty one."""
    return message(number, content.encode()) if content else b""


def entry(number: int, key: str, value: bytes) -> bytes:
    """Return an entry of a map from strings to messages."""
    return message(number, string(1, key) + message(2, value))


def _numbers(message: bytes) -> Iterator[tuple[int, int]]:
    for key, value in _walk(message):
        if isinstance(value, int):
            yield key, value


def _walk(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield the number and content of each field; fixed-size numbers are skipped."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
            case 1:
                at += 8
            case 5:
                at += 4
            case 2:
                length, start = _varint(message, at)
                at = start + length
                if at <= len(message):
                    yield key >> 3, message[start:at]
            case kind:
                raise ValueError(f"the message has a field of unknown wire type {kind}")
    if at > len(message):
        raise ValueError("the message ends within a field")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at that position and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("the message ends within a number")
        value |= (message[at] & 0x7F) << shift
        at += 1
        if message[at - 1] < 0x80:
            return value, at
    raise ValueError("the message has a number of more than 64 bits")


def _encoded(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
