"""Workloads that were deleted from their source, in their last state: pods, GPUs, labels, end."""

from collections.abc import Sequence

import asyncpg
import msgspec

from gpufleet.fleet.workloads.archive import WorkloadRecord
from gpufleet.model.gpu_models import sum_by_model
from gpufleet.store.postgres.bulk import bulk_upsert
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.jsonb import jsonb

_NEWEST = "SELECT record FROM ended_workload WHERE cluster = $1 ORDER BY ended_at DESC, uid LIMIT $2"


class EndedWorkloads:
    """Store workloads that have ended."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._decode = msgspec.json.Decoder(WorkloadRecord).decode

    async def save(self, cluster: str, ended: Sequence[WorkloadRecord]) -> None:
        """Upsert workloads by uid."""
        rows = {
            record.workload.uid: (
                cluster,
                record.workload.uid,
                record.workload.ended,
                jsonb(record),
            )
            for record in ended
        }

        async def work(connection: asyncpg.Connection) -> None:
            await bulk_upsert(
                connection,
                "ended_workload",
                ("cluster", "uid", "ended_at", "record"),
                ("cluster", "uid"),
                rows.values(),
            )

        if rows:
            await self._database.transaction(work)

    async def newest(self, cluster: str, count: int) -> list[WorkloadRecord]:
        """Return the `count` workloads that ended last, sorted by end."""
        rows = await self._database.fetch(_NEWEST, cluster, count)
        records = [self._decode(row["record"]) for row in reversed(rows)]
        # Rows of earlier versions have the sources' spellings.
        return [record._replace(models=sum_by_model(record.models)) for record in records]

    async def statuses(self, cluster: str, uids: Sequence[str]) -> dict[str, str]:
        """Return the last status of each of these workloads, where it is known."""
        rows = await self._database.fetch(
            "SELECT uid, record #>> '{0,status}' AS status FROM ended_workload"
            " WHERE cluster = $1 AND uid = ANY($2::text[])",
            *(cluster, list(uids)),
        )
        return {row["uid"]: row["status"] for row in rows if row["status"]}
