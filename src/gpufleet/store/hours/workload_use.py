"""Read what each workload used on a day, for billing exports.

Amounts are the daily sums that reports use, so that both agree. The nodes and GPU models of a workload come from its
allocation periods, as long as they are kept.
"""

import asyncpg
import msgspec

from gpufleet.model.charges import Amounts, WorkloadUse
from gpufleet.model.namespaces import Namespaces
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.hours.usage import UsageSums
from gpufleet.store.postgres.database import Database

_USES = """
SELECT n.name AS namespace, k.name AS kind, w.name, w.uid, w.source, w.labels, allocated, idle, cost, energy,
    held.nodes, held.models
FROM usage_day AS d
JOIN workload AS w ON w.id = d.member
JOIN namespace_name AS n ON n.id = w.namespace
JOIN kind_name AS k ON k.id = w.kind
LEFT JOIN (
    SELECT facts ->> 'workload_uid' AS uid, array_agg(DISTINCT facts ->> 'node') AS nodes,
        array_agg(DISTINCT model) AS models
    FROM holding CROSS JOIN LATERAL jsonb_array_elements_text(
        CASE WHEN jsonb_array_length(coalesce(facts -> 'models', '[]')) > 0 THEN facts -> 'models'
        ELSE jsonb_build_array(facts ->> 'model') END
    ) AS model
    WHERE cluster = $1 AND ended_at > $2 * 3600.0 AND started_at < ($2 + 24) * 3600.0
    GROUP BY 1
) AS held ON held.uid = w.uid
WHERE d.cluster = $1 AND d.grouping = 'workload' AND d.hour = $2 AND ($3::text[] IS NULL OR n.name = ANY($3))
ORDER BY n.name, k.name, w.name, w.uid, w.id
"""


class WorkloadUses:
    """Read the use of workloads by day. A day is identified by its first hour."""

    def __init__(self, database: Database, clusters: AccountedClusters, sums: UsageSums) -> None:
        self._database = database
        self._clusters = clusters
        self._sums = sums

    async def of_day(self, cluster: str, day: int, namespaces: Namespaces = None) -> list[WorkloadUse]:
        """Return the use of each workload that the caller may see."""
        cluster_id = await self._clusters.id_of(cluster)
        rows = await self._database.fetch(_USES, cluster_id, day, namespaces)
        return [_use(row) for row in rows]

    async def total(self, cluster: str, day: int, namespaces: Namespaces = None) -> Amounts:
        """Return the use of the cluster, or of `namespaces`."""
        total = await self._sums.totals(cluster, day, day + 24, namespaces)
        return Amounts(allocated=total.allocated, idle=total.idle, cost=total.cost, energy=total.energy)


def _use(row: asyncpg.Record) -> WorkloadUse:
    return WorkloadUse(
        namespace=row["namespace"],
        kind=row["kind"],
        name=row["name"],
        uid=row["uid"],
        source=row["source"],
        labels=msgspec.json.decode(row["labels"], type=dict[str, str]),
        nodes=tuple(sorted(row["nodes"] or ())),
        models=tuple(sorted(filter(None, row["models"] or ()))),
        amounts=Amounts(
            allocated=int(row["allocated"]),
            idle=int(row["idle"]),
            cost=row["cost"],
            energy=None if row["energy"] is None else int(row["energy"]),
        ),
    )
