"""Numbers for names: namespaces, kinds, labels and workloads are written once and referred to.

What is known stays in memory; what is not is inserted and read back, all of an hour in one statement
each. A transaction that is rolled back forgets what it learned (`Names.forget`).
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import asyncpg
import msgspec

from gpufleet.accounting.hours import LabelHour, WorkloadHour
from gpufleet.store.postgres.jsonb import jsonb

MOST_KEPT = 200_000
"""Workloads whose numbers are kept in memory."""

_NAMESPACES = (
    "INSERT INTO namespace_name (cluster, name) SELECT $1, * FROM unnest($2::text[]) ON CONFLICT DO NOTHING"
)
_KINDS = "INSERT INTO kind_name (name) SELECT * FROM unnest($1::text[]) ON CONFLICT DO NOTHING"
_LABELS = """
INSERT INTO label_name (cluster, type, key, value)
SELECT $1, * FROM unnest($2::text[], $3::text[], $4::text[]) ON CONFLICT DO NOTHING
"""
_LABEL_IDS = """
SELECT id, type, key, value FROM label_name
JOIN unnest($2::text[], $3::text[], $4::text[]) AS asked (type, key, value) USING (type, key, value)
WHERE cluster = $1
"""
_WORKLOADS = """
INSERT INTO workload (cluster, namespace, kind, name, uid, digest, source, labels, annotations)
SELECT $1, * FROM unnest(
    $2::int[], $3::smallint[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::jsonb[], $9::jsonb[]
) ON CONFLICT DO NOTHING
"""
_WORKLOAD_IDS = """
SELECT id, namespace, kind, name, uid, digest FROM workload
JOIN unnest($2::int[], $3::smallint[], $4::text[], $5::text[], $6::bytea[])
    AS asked (namespace, kind, name, uid, digest) USING (namespace, kind, name, uid, digest)
WHERE cluster = $1
"""
Key = tuple[Any, ...]


class Names:
    """Numbers by name, for every cluster."""

    def __init__(self) -> None:
        self._known: dict[Key, int] = {}

    def forget(self) -> None:
        """Ask the database again for everything."""
        self._known.clear()

    async def namespaces(
        self, connection: asyncpg.Connection, cluster: int, names: Iterable[str]
    ) -> dict[str, int]:
        """The number of each namespace."""

        async def learn(missing: Sequence[Key]) -> None:
            wanted = [key[2] for key in missing]
            await connection.execute(_NAMESPACES, cluster, wanted)
            found = await connection.fetch(
                "SELECT id, name FROM namespace_name WHERE cluster = $1 AND name = ANY($2::text[])",
                *(cluster, wanted),
            )
            self._known.update({("namespace", cluster, row["name"]): row["id"] for row in found})

        keys = {name: ("namespace", cluster, name) for name in names}
        return await self._numbers(keys, learn)

    async def kinds(self, connection: asyncpg.Connection, names: Iterable[str]) -> dict[str, int]:
        """The number of each kind."""

        async def learn(missing: Sequence[Key]) -> None:
            wanted = [key[1] for key in missing]
            await connection.execute(_KINDS, wanted)
            found = await connection.fetch(
                "SELECT id, name FROM kind_name WHERE name = ANY($1::text[])", wanted
            )
            self._known.update({("kind", row["name"]): row["id"] for row in found})

        return await self._numbers({name: ("kind", name) for name in names}, learn)

    async def labels(
        self, connection: asyncpg.Connection, cluster: int, rows: Sequence[LabelHour]
    ) -> dict[int, int]:
        """The number of the label of each row, by the row's place."""

        async def learn(missing: Sequence[Key]) -> None:
            wanted = [list(column) for column in zip(*(key[2:] for key in missing), strict=True)]
            await connection.execute(_LABELS, cluster, *wanted)
            for row in await connection.fetch(_LABEL_IDS, cluster, *wanted):
                self._known["label", cluster, row["type"], row["key"], row["value"]] = row["id"]

        keys = {
            place: ("label", cluster, row.dimension_type, row.dimension_key, row.dimension_value)
            for place, row in enumerate(rows)
        }
        return await self._numbers(keys, learn)

    async def workloads(
        self,
        connection: asyncpg.Connection,
        cluster: int,
        rows: Sequence[WorkloadHour],
        places: Sequence[tuple[int, int]],
    ) -> dict[int, int]:
        """The number of the workload of each row, by the row's place; `places` are namespace and kind."""
        digests = [_digest(row) for row in rows]
        of_key: dict[Key, WorkloadHour] = {}
        keys: dict[int, Key] = {}
        for place, row in enumerate(rows):
            key = ("workload", cluster, *places[place], row.name, row.uid, digests[place])
            keys[place], of_key[key] = key, row

        async def learn(missing: Sequence[Key]) -> None:
            wanted = [list(column) for column in zip(*(key[2:] for key in missing), strict=True)]
            described = [of_key[key] for key in missing]
            await connection.execute(
                _WORKLOADS,
                cluster,
                *wanted,
                [row.source for row in described],
                [jsonb(row.labels) for row in described],
                [jsonb(row.annotations) for row in described],
            )
            for row in await connection.fetch(_WORKLOAD_IDS, cluster, *wanted):
                place = (row["namespace"], row["kind"], row["name"], row["uid"], row["digest"])
                self._known["workload", cluster, *place] = row["id"]

        return await self._numbers(keys, learn)

    async def _numbers(self, keys: dict[Any, Key], learn: Callable[[Sequence[Key]], Any]) -> dict[Any, int]:
        missing = sorted({key for key in keys.values() if key not in self._known})
        if missing:
            if len(self._known) + len(missing) > MOST_KEPT:
                self.forget()
                missing = sorted(set(keys.values()))
            await learn(missing)
        return {name: self._known[key] for name, key in keys.items()}


def _digest(row: WorkloadHour) -> bytes:
    """What the description of a workload is known by."""
    described = (row.source, sorted(row.labels.items()), sorted(row.annotations.items()))
    return hashlib.blake2b(msgspec.json.encode(described), digest_size=16).digest()
