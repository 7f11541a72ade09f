"""The keys of our advisory locks in PostgreSQL."""

import hashlib

_CLASS = 0x67707566
"""The first half of all our keys ("gpuf")."""

MIGRATION_LOCK = (_CLASS, 0)
"""The key of migrations."""


def advisory_lock(name: str) -> tuple[int, int]:
    """Return the key of a name, such as a job; it never equals that of the migrations."""
    digest = hashlib.sha256(name.encode()).digest()
    return _CLASS, 1 + int.from_bytes(digest[:4], "big") % (2**31 - 1)
