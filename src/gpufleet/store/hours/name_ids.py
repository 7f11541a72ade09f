"""Map the names of namespaces, kinds, labels and workloads to ids, so that rows refer to them by id.

Known ids are cached in memory. Missing names are inserted and read back, with one statement per hour and
type. After a rollback, call `NameIds.clear`: the cache may contain ids that were never committed.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import asyncpg
import msgspec

from gpufleet.model.hours import LabelHour, WorkloadHour
from gpufleet.store.postgres.jsonb import jsonb

MAX_CACHED = 200_000
"""Ids cached in memory."""

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
JOIN unnest($2::text[], $3::text[], $4::text[]) AS wanted (type, key, value) USING (type, key, value)
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
    AS wanted (namespace, kind, name, uid, digest) USING (namespace, kind, name, uid, digest)
WHERE cluster = $1
"""
Key = tuple[Any, ...]


class NameIds:
    """Ids by name."""

    def __init__(self) -> None:
        self._ids: dict[Key, int] = {}

    def clear(self) -> None:
        """Clear the cache."""
        self._ids.clear()

    async def namespaces(
        self, connection: asyncpg.Connection, cluster: int, names: Iterable[str]
    ) -> dict[str, int]:
        """Return the id of each namespace."""

        async def insert(missing: Sequence[Key]) -> None:
            new_names = [key[2] for key in missing]
            await connection.execute(_NAMESPACES, cluster, new_names)
            found = await connection.fetch(
                "SELECT id, name FROM namespace_name WHERE cluster = $1 AND name = ANY($2::text[])",
                *(cluster, new_names),
            )
            self._ids.update({("namespace", cluster, row["name"]): row["id"] for row in found})

        keys = {name: ("namespace", cluster, name) for name in names}
        return await self._lookup(keys, insert)

    async def kinds(self, connection: asyncpg.Connection, names: Iterable[str]) -> dict[str, int]:
        """Return the id of each kind."""

        async def insert(missing: Sequence[Key]) -> None:
            new_names = [key[1] for key in missing]
            await connection.execute(_KINDS, new_names)
            found = await connection.fetch(
                "SELECT id, name FROM kind_name WHERE name = ANY($1::text[])", new_names
            )
            self._ids.update({("kind", row["name"]): row["id"] for row in found})

        return await self._lookup({name: ("kind", name) for name in names}, insert)

    async def labels(
        self, connection: asyncpg.Connection, cluster: int, rows: Sequence[LabelHour]
    ) -> dict[int, int]:
        """Return the id of the label of each row, by row index."""

        async def insert(missing: Sequence[Key]) -> None:
            columns = [list(column) for column in zip(*(key[2:] for key in missing), strict=True)]
            await connection.execute(_LABELS, cluster, *columns)
            for row in await connection.fetch(_LABEL_IDS, cluster, *columns):
                self._ids["label", cluster, row["type"], row["key"], row["value"]] = row["id"]

        keys = {
            index: ("label", cluster, row.dimension_type, row.dimension_key, row.dimension_value)
            for index, row in enumerate(rows)
        }
        return await self._lookup(keys, insert)

    async def workloads(
        self,
        connection: asyncpg.Connection,
        cluster: int,
        rows: Sequence[WorkloadHour],
        groups: Sequence[tuple[int, int]],
    ) -> dict[int, int]:
        """Return the id of the workload of each row, by row index; `groups` are (namespace id, kind id)."""
        row_of: dict[Key, WorkloadHour] = {}
        keys: dict[int, Key] = {}
        for index, row in enumerate(rows):
            key = ("workload", cluster, *groups[index], row.name, row.uid, _digest(row))
            keys[index], row_of[key] = key, row

        async def insert(missing: Sequence[Key]) -> None:
            columns = [list(column) for column in zip(*(key[2:] for key in missing), strict=True)]
            new = [row_of[key] for key in missing]
            await connection.execute(
                _WORKLOADS,
                cluster,
                *columns,
                [row.source for row in new],
                [jsonb(row.labels) for row in new],
                [jsonb(row.annotations) for row in new],
            )
            for row in await connection.fetch(_WORKLOAD_IDS, cluster, *columns):
                key = (row["namespace"], row["kind"], row["name"], row["uid"], row["digest"])
                self._ids["workload", cluster, *key] = row["id"]

        return await self._lookup(keys, insert)

    async def _lookup(self, keys: dict[Any, Key], insert: Callable[[Sequence[Key]], Any]) -> dict[Any, int]:
        missing = sorted({key for key in keys.values() if key not in self._ids})
        if missing:
            if len(self._ids) + len(missing) > MAX_CACHED:
                self.clear()
                missing = sorted(set(keys.values()))
            await insert(missing)
        return {name: self._ids[key] for name, key in keys.items()}


def _digest(row: WorkloadHour) -> bytes:
    """Hash the description of a workload: the same workload with new labels gets a new id."""
    description = (row.source, sorted(row.labels.items()), sorted(row.annotations.items()))
    return hashlib.blake2b(msgspec.json.encode(description), digest_size=16).digest()
