"""Recent readings of all GPUs, written as ticks and compacted into chunks.

`append` stores each refresh as one row per quantity (a tick). Every quarter of an hour,
`compact_and_prune` turns the ticks of past quarters into one row per node (a chunk), in one transaction,
and deletes readings that exceed the retention of their cluster. Chunks have partitions of six hours:
dropping one that expired for all clusters frees its space immediately. Reads join both and fetch ticks
first, so that ticks compacted in the meantime are seen twice rather than missed.
"""

import asyncio
import hashlib
import math
import zlib
from collections.abc import Collection, Mapping, Sequence

import asyncpg
import msgspec

from gpufleet.model.reading import (
    Fault,
    GpuIdentity,
    GpuRef,
    GpuSeries,
    GpuUser,
    Quantity,
    Readings,
)
from gpufleet.runtime.logs import get_logger
from gpufleet.store.partitions import existing_tables
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.locks import advisory_lock
from gpufleet.store.prune_runs import prune_time, record_run
from gpufleet.store.readings.chunks import (
    Packed,
    ReadingGrid,
    as_series,
    pack_chunks,
    pack_tick,
    stack,
    unpack_chunk,
    unpack_tick,
)
from gpufleet.store.retention_requests import delete_outdated, record_retention, requested_retention

CHUNK_SECONDS = 900.0
"""Maximum span of a chunk."""

_PARTITION = 6 * 3600
_MAX_SAMPLE_AGE = 300.0
"""Maximum seconds between the time of a sample and the refresh that contains it."""

_LAYOUTS_CACHED = 64
_MARKS = "holders and faults"
_RETENTION = "metrics.retention"
_log = get_logger("store")
_Mark = tuple[GpuRef, tuple[GpuUser, ...], tuple[Fault, ...]]

_PUT_LAYOUT = """
INSERT INTO reading_layout (cluster, digest, gpus, seen_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (cluster, digest) DO UPDATE SET seen_at = greatest(reading_layout.seen_at, excluded.seen_at)
RETURNING id
"""
_PUT_TICK = """
INSERT INTO reading_tick (cluster, quantity, taken_at, layout, columns) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (cluster, quantity, taken_at) DO UPDATE SET layout = excluded.layout, columns = excluded.columns
"""
_PUT_STATE = """
INSERT INTO reading_state (cluster, kind, taken_at, state) VALUES ($1, $2, $3, $4)
ON CONFLICT (cluster, kind) DO UPDATE SET taken_at = excluded.taken_at, state = excluded.state
WHERE reading_state.taken_at <= excluded.taken_at
    OR reading_state.taken_at > excluded.taken_at + 60 -- the writer's clock was ahead
"""
_TICKS = """
SELECT layout, columns FROM reading_tick
WHERE cluster = $1 AND quantity = $2 AND taken_at >= $3 AND taken_at < $4 ORDER BY taken_at
"""
_CHUNKS = """
SELECT node, columns FROM reading_chunk
WHERE cluster = $1 AND quantity = $2 AND start > $3 AND start <= $4
"""
_CHUNKS_OF_NODES = _CHUNKS + " AND node = ANY($5::text[])"
_NEWEST = """
SELECT quantity, taken_at, layout, columns FROM reading_tick
WHERE cluster = $1 AND taken_at = (SELECT max(taken_at) FROM reading_tick WHERE cluster = $1 AND taken_at <= $2)
"""
_OLDEST_QUARTER = """
SELECT quantity, taken_at FROM reading_tick WHERE cluster = $1 AND taken_at < $2 ORDER BY taken_at LIMIT 1
"""
_PARTITIONS = """
SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
WHERE inhparent = 'reading_chunk'::regclass ORDER BY relname
"""
_DELETE_EXPIRED = """
DELETE FROM {table} AS old WHERE {seen} < $1 - coalesce(
    (SELECT seconds FROM retention WHERE what = 'metrics.retention' AND retention.cluster = old.cluster), $2)
"""
_DELETE_LAYOUTS = _DELETE_EXPIRED + "AND NOT EXISTS (SELECT FROM reading_tick WHERE layout = old.id)"
_DELETE_CHUNKS = "DELETE FROM reading_chunk WHERE cluster = $1 AND start < $2"


class ReadingStore:
    """Store readings of GPUs."""

    def __init__(self, database: Database, long_reads: Database | None = None) -> None:
        """Use `long_reads` for the graphs of some GPUs; accounting, which reads all GPUs, does not wait for them."""
        self._database = database
        self._long_reads = long_reads or database
        self._layouts: dict[int, tuple[GpuIdentity, ...]] = {}
        self._refs: dict[int, tuple[GpuRef, ...]] = {}

    async def append(self, cluster: str, readings: Readings) -> None:
        """Store one refresh; storing it again changes nothing."""
        layout, digest, ticks, marks = await asyncio.to_thread(_packed, readings)

        async def work(connection: asyncpg.Connection) -> None:
            layout_id = await connection.fetchval(_PUT_LAYOUT, cluster, digest, layout, readings.taken_at)
            rows = [(cluster, quantity, readings.taken_at, layout_id, columns) for quantity, columns in ticks]
            await connection.executemany(_PUT_TICK, rows)
            await connection.execute(_PUT_STATE, cluster, _MARKS, readings.taken_at, marks)

        if ticks:
            await self._database.transaction(work)

    async def append_past(self, cluster: str, past: Sequence[tuple[Quantity, ReadingGrid]]) -> None:
        """Store old readings as grids of at most `CHUNK_SECONDS`; reads drop duplicates."""

        def pack() -> list[tuple[str, str, str, float, bytes]]:
            packed: Packed = {}
            return [
                (cluster, quantity.value, node, float(grid.moments[0]), columns)
                for quantity, grid in past
                for node, columns in pack_chunks(grid, packed)
            ]

        rows = await asyncio.to_thread(pack)

        async def work(connection: asyncpg.Connection) -> None:
            await _lock(connection)
            for start in sorted({start - start % _PARTITION for _, _, _, start, _ in rows}):
                await _ensure_partition(connection, start)
            await connection.copy_records_to_table(
                "reading_chunk", records=rows, columns=("cluster", "quantity", "node", "start", "columns")
            )

        await self._database.transaction(work)

    async def latest(self, cluster: str, until: float = math.inf) -> Readings | None:
        """Return the newest refresh up to `until`; None if there is none."""
        rows = await self._database.fetch(_NEWEST, cluster, until)
        if not rows:
            return None
        gpus = (await self._identities({rows[0]["layout"]}))[rows[0]["layout"]]
        refs = tuple(gpu.ref for gpu in gpus)
        grids = {Quantity(row["quantity"]): unpack_tick(refs, row["columns"]) for row in rows}
        state = await self.state(cluster, _MARKS)
        marks = msgspec.msgpack.decode(zlib.decompress(state[1]), type=list[_Mark]) if state else []
        rows_by_ref = {ref: row for row, ref in enumerate(refs)}
        return Readings(
            rows[0]["taken_at"],
            gpus,
            {quantity: grid.values[:, 0] for quantity, grid in grids.items()},
            {quantity: grid.times[:, 0] for quantity, grid in grids.items()},
            {rows_by_ref[ref]: holders for ref, holders, _ in marks if holders and ref in rows_by_ref},
            {rows_by_ref[ref]: faults for ref, _, faults in marks if faults and ref in rows_by_ref},
        )

    async def samples(
        self,
        cluster: str,
        quantity: Quantity,
        start: float,
        end: float,
        gpus: Collection[GpuRef] | None = None,
    ) -> Sequence[GpuSeries]:
        """Return the samples of all or some GPUs from `start` to `end` (see `as_series`)."""
        span = (start - _MAX_SAMPLE_AGE, end + _MAX_SAMPLE_AGE)
        database = self._database if gpus is None else self._long_reads
        ticks = await database.fetch(_TICKS, cluster, quantity, *span)
        since = (start - _MAX_SAMPLE_AGE - CHUNK_SECONDS, end + _MAX_SAMPLE_AGE)
        if gpus is None:
            chunks = await database.fetch(_CHUNKS, cluster, quantity, *since)
        else:
            nodes = sorted({gpu.node for gpu in gpus})
            chunks = await database.fetch(_CHUNKS_OF_NODES, cluster, quantity, *since, nodes)
        refs = await self._refs_of(ticks)

        def assemble() -> list[GpuSeries]:
            grids = [unpack_chunk(row["node"], row["columns"]) for row in chunks]
            if ticks:
                grids.append(stack([unpack_tick(refs[row["layout"]], row["columns"]) for row in ticks]))
            return as_series(grids, None if gpus is None else frozenset(gpus), start, end)

        return await asyncio.to_thread(assemble)

    async def put_state(self, cluster: str, kind: str, taken_at: float, state: bytes) -> None:
        """Store a state, unless a newer one of its kind is stored."""
        await self._database.execute(_PUT_STATE, cluster, kind, taken_at, state)

    async def state(self, cluster: str, kind: str) -> tuple[float, bytes] | None:
        """Return the time and content of the newest state of a kind."""
        row = await self._database.fetchrow(
            "SELECT taken_at, state FROM reading_state WHERE cluster = $1 AND kind = $2", cluster, kind
        )
        return (row["taken_at"], row["state"]) if row else None

    async def compact_and_prune(self, cluster: str, now: float, keep: float) -> None:
        """Compact ticks of past quarters into chunks and delete readings older than `keep` seconds."""
        before = now - now % CHUNK_SECONDS
        while await self._database.transaction(lambda connection: self._compact(connection, cluster, before)):
            pass
        clock = self._database.clock
        await self._database.transaction(lambda connection: _prune(connection, {cluster: keep}, now, clock))

    async def _compact(self, connection: asyncpg.Connection, cluster: str, before: float) -> bool:
        await _lock(connection)
        oldest = await connection.fetchrow(_OLDEST_QUARTER, cluster, before)
        if oldest is None:
            return False
        start = oldest["taken_at"] - oldest["taken_at"] % CHUNK_SECONDS
        quarter = (cluster, oldest["quantity"], start, start + CHUNK_SECONDS)
        ticks = await connection.fetch(_TICKS, *quarter)
        refs = await self._refs_of(ticks, connection)

        def pack() -> list[tuple[str, str, str, float, bytes]]:
            grid: ReadingGrid = stack([unpack_tick(refs[row["layout"]], row["columns"]) for row in ticks])
            return [
                (cluster, oldest["quantity"], node, start, columns) for node, columns in pack_chunks(grid)
            ]

        rows = await asyncio.to_thread(pack)
        await _ensure_partition(connection, start)
        await connection.copy_records_to_table(
            "reading_chunk", records=rows, columns=("cluster", "quantity", "node", "start", "columns")
        )
        await connection.execute(
            "DELETE FROM reading_tick WHERE cluster = $1 AND quantity = $2 AND taken_at >= $3 AND taken_at < $4",
            *quarter,
        )
        return True

    async def _refs_of(
        self, ticks: Sequence[asyncpg.Record], connection: asyncpg.Connection | None = None
    ) -> dict[int, tuple[GpuRef, ...]]:
        identities = await self._identities({row["layout"] for row in ticks}, connection)
        for layout_id in identities.keys() - self._refs.keys():
            self._refs[layout_id] = tuple(gpu.ref for gpu in identities[layout_id])
        return {layout_id: self._refs[layout_id] for layout_id in identities}

    async def _identities(
        self, layout_ids: set[int], connection: asyncpg.Connection | None = None
    ) -> dict[int, tuple[GpuIdentity, ...]]:
        found = {layout_id: self._layouts[layout_id] for layout_id in layout_ids & self._layouts.keys()}
        if missing := layout_ids - found.keys():
            rows = await (connection or self._database).fetch(
                "SELECT id, gpus FROM reading_layout WHERE id = ANY($1::int[])", sorted(missing)
            )
            if len(self._layouts) + len(missing) > _LAYOUTS_CACHED:
                self._layouts.clear()
                self._refs.clear()
            for row in rows:
                found[row["id"]] = msgspec.msgpack.decode(
                    zlib.decompress(row["gpus"]), type=tuple[GpuIdentity, ...]
                )
            self._layouts |= found
        return found


def _packed(readings: Readings) -> tuple[bytes, bytes, list[tuple[str, bytes]], bytes]:
    layout = msgspec.msgpack.encode(readings.gpus)
    ticks = [
        (quantity.value, pack_tick(readings.taken_at, readings.times[quantity], values))
        for quantity, values in readings.values.items()
        if len(values)
    ]
    marked = sorted(readings.holders.keys() | readings.faults.keys())
    marks: list[_Mark] = [
        (readings.gpus[row].ref, readings.holders.get(row, ()), readings.faults.get(row, ()))
        for row in marked
    ]
    state = zlib.compress(msgspec.msgpack.encode(marks), 1)
    return zlib.compress(layout, 6), hashlib.sha256(layout).digest(), ticks, state


async def _lock(connection: asyncpg.Connection) -> None:
    """Let no other transaction create, fill or drop partitions until this one ends."""
    await connection.execute("SELECT pg_advisory_xact_lock($1, $2)", *advisory_lock("tidy readings"))


async def _ensure_partition(connection: asyncpg.Connection, start: float) -> None:
    """Create the partition that begins at `start`. The transaction holds the lock."""
    number = int(start // _PARTITION)
    name = f"reading_chunk_{number}"
    if not await existing_tables(connection, [name]):
        # create, then attach: this does not block readers
        await connection.execute(f"CREATE TABLE {name} (LIKE reading_chunk INCLUDING ALL)")
        await connection.execute(
            f"ALTER TABLE reading_chunk ATTACH PARTITION {name} "
            f"FOR VALUES FROM ({number * _PARTITION}) TO ({(number + 1) * _PARTITION})"
        )


async def _prune(connection: asyncpg.Connection, keep: Mapping[str, float], now: float, clock: str) -> None:
    await _lock(connection)
    time = await prune_time(connection, clock)
    now = min(now, time.now)
    await record_retention(connection, _RETENTION, keep, now)
    if time.held:
        return
    retention = await requested_retention(connection, _RETENTION)
    longest = max(retention.values())
    # Drop partitions before deleting rows: the reverse order would need to upgrade the table lock.
    numbers = [int(row["relname"].rsplit("_", 1)[1]) for row in await connection.fetch(_PARTITIONS)]
    expired = [number for number in sorted(numbers) if (number + 1) * _PARTITION < now - longest]
    for number in expired[:1]:  # one in a run, of those every quarter of an hour
        start, name = float(number * _PARTITION), f"reading_chunk_{number}"
        rows = await connection.fetchval(f"SELECT count(*) FROM {name}")  # noqa: S608
        await connection.execute(f"DROP TABLE {name}")
        await record_run(connection, name, "", rows, start, start + _PARTITION)
        _log.info("readings_pruned", partition=name)
    # clusters without a recorded retention use the longest one
    await connection.execute(_DELETE_EXPIRED.format(table="reading_tick", seen="taken_at"), now, longest)
    await connection.execute(_DELETE_EXPIRED.format(table="reading_state", seen="taken_at"), now, longest)
    await connection.execute(_DELETE_LAYOUTS.format(table="reading_layout", seen="seen_at"), now, longest)
    for cluster, seconds in retention.items():
        if seconds < longest:
            before = now - seconds
            await connection.execute(_DELETE_CHUNKS, cluster, before - before % _PARTITION)
    await delete_outdated(connection, _RETENTION, now - _PARTITION)
