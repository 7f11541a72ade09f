"""Text for columns of type jsonb, which take every JSON but one: a string with a NUL in it.

Kubernetes lets users put NULs into annotations. One of them must not keep the books of a whole cluster
from being written, so that it is stored as the character for what can't be shown.
"""

import re
from typing import Any

import msgspec

_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def jsonb(value: Any) -> str:
    """The JSON of a value."""
    return storable(msgspec.json.encode(value).decode())


def storable(text: str) -> str:
    """JSON text without NULs."""
    return _NUL.sub(r"\1\\ufffd", text) if r"\u0000" in text else text
