"""GPU time, cost and energy per hour or day and group, for charts that add up to the totals of a report.

Hours come from the table of the grouping, days from the daily sums that reports use. GPU time and energy are
integers, so a chart always adds up to its report.
"""

from collections.abc import Sequence
from decimal import Decimal
from typing import Literal

import asyncpg

from gpufleet.model.namespaces import Namespaces
from gpufleet.model.statistics import UsageAmount, UsageSum
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.hours.limited_sql import CLUSTER_SERIES, LABEL_SERIES, NAMESPACE_IDS
from gpufleet.store.postgres.database import Database

Step = Literal["hour", "day"]
GroupKey = tuple[str, str, str, str]
"""Namespace, kind, name and uid; empty strings where a grouping has none."""

_DAYS = "usage_day WHERE grouping = '{grouping}' AND cluster = $1 AND hour >= $2 AND hour < $3"
_HOURS = "{grouping}_hour WHERE cluster = $1 AND hour >= $2 AND hour < $3"
_CLUSTER = "SELECT hour, allocated, cost, energy FROM {rows} ORDER BY hour"
_NAMESPACE = """
SELECT hour, '' AS namespace, '' AS kind, name, '' AS uid, allocated, cost, energy
FROM (SELECT hour, {member} AS member, allocated, cost, energy FROM {rows}) AS r
JOIN namespace_name ON id = member WHERE cluster = $1 AND name = ANY($4::text[])
"""
_LABEL = """
SELECT hour, '' AS namespace, '' AS kind, value AS name, '' AS uid, allocated, cost, energy
FROM (SELECT hour, {member} AS member, allocated, cost, energy FROM {rows}) AS r
JOIN label_name ON id = member WHERE cluster = $1 AND value = ANY($4::text[]) AND type = $5 AND key = $6
"""
# A workload whose labels changed has several members; merge them.
_WORKLOAD = """
SELECT hour, n.name AS namespace, k.name AS kind, w.name, {uid} AS uid, sum(allocated) AS allocated, sum(cost) AS cost,
    sum(energy) AS energy
FROM (SELECT hour, {member} AS member, allocated, cost, energy FROM {rows}) AS r
JOIN workload AS w ON w.id = member JOIN namespace_name AS n ON n.id = w.namespace
JOIN kind_name AS k ON k.id = w.kind
WHERE w.cluster = $1 AND (n.name, k.name, w.name) IN (SELECT * FROM unnest($4::text[], $5::text[], $6::text[]))
"""
_RUNS = (
    _WORKLOAD.replace("{uid}", "uid") + "AND uid = ANY($7::text[]) GROUP BY hour, n.name, k.name, w.name, uid"
)
_MERGED = _WORKLOAD.replace("{uid}", "''") + "GROUP BY hour, n.name, k.name, w.name"


class UsageSeries:
    """Read usage over time."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def of_cluster(
        self, cluster: str, first: int, after: int, step: Step, namespaces: Namespaces = None
    ) -> dict[int, UsageAmount]:
        """Return the use of the cluster, or of `namespaces`, in each hour or day, by (first) hour."""
        number = await self._clusters.id_of(cluster)
        rows = await self._database.fetch(_CLUSTER.format(rows=_rows("cluster", step)), number, first, after)
        used = {row["hour"]: _amount(row) for row in rows}
        if namespaces is None:
            return used
        member = "member" if step == "day" else "namespace"
        query = CLUSTER_SERIES.format(rows=_rows("namespace", step), member=member)
        ids = await self._namespace_ids(number, namespaces)
        found = await self._database.fetch(query, number, first, after, ids)
        return dict.fromkeys(used, UsageAmount()) | {row["hour"]: _amount(row) for row in found}

    async def of_groups(
        self,
        cluster: str,
        first: int,
        after: int,
        step: Step,
        by: str,
        key: str,
        groups: Sequence[UsageSum],
        namespaces: Namespaces = None,
    ) -> dict[GroupKey, dict[int, UsageAmount]]:
        """Return the same for each of `groups`."""
        names = [group.name for group in groups]
        params: Sequence[list[str] | list[int] | str]
        span = (await self._clusters.id_of(cluster), first, after)
        if by == "namespace":
            query, params = _NAMESPACE, [names]
        elif by == "workload":
            owners = [[group.namespace for group in groups], [group.kind for group in groups], names]
            merged = any(group.runs for group in groups)
            query, params = (
                (_MERGED, owners) if merged else (_RUNS, [*owners, [group.uid for group in groups]])
            )
        else:
            query, params = _LABEL, [names, by, key]
        table = by if by in ("namespace", "workload") else "label"
        if table == "label" and namespaces is not None:
            ids = await self._namespace_ids(span[0], namespaces)
            table, query, params = "workload", LABEL_SERIES, [ids, by, key, names]
        member = "member" if step == "day" else table
        query = query.format(rows=_rows(table, step), member=member)
        series: dict[GroupKey, dict[int, UsageAmount]] = {}
        for row in await self._database.fetch(query, *span, *params):
            group = (row["namespace"], row["kind"], row["name"], row["uid"])
            series.setdefault(group, {})[row["hour"]] = _amount(row)
        return series

    async def _namespace_ids(self, number: int, namespaces: frozenset[str]) -> list[int]:
        return [row["id"] for row in await self._database.fetch(NAMESPACE_IDS, number, namespaces)]


def _amount(row: asyncpg.Record) -> UsageAmount:
    energy = row["energy"]
    return UsageAmount(int(row["allocated"]), Decimal(row["cost"]), None if energy is None else int(energy))


def _rows(grouping: str, step: Step) -> str:
    return (_DAYS if step == "day" else _HOURS).format(grouping=grouping)
