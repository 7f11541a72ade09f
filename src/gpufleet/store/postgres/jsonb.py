"""Encode values for jsonb columns, which accept all JSON except strings with a NUL character.

Kubernetes allows NULs in annotations. One of them must not block the accounting of a whole cluster, so
they are replaced with U+FFFD, the replacement character.
"""

import re
from typing import Any

import msgspec

_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")


def jsonb(value: Any) -> str:
    """Encode a value as JSON without NULs."""
    return replace_nuls(msgspec.json.encode(value).decode())


def replace_nuls(text: str) -> str:
    """Replace NULs in JSON text."""
    return _NUL.sub(r"\1\\ufffd", text) if r"\u0000" in text else text
