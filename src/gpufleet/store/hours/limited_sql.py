"""SQL for callers who are limited to namespaces.

Rows of clusters and labels count all namespaces. For a limited caller they are summed again, a cluster from the
rows of its namespaces and a label from those of its workloads. Utilization is weighted by GPU time. Extremes and
percentiles of a sum are not known; they are those of the part if there is only one.

$1 is the cluster, $2 and $3 are the first and last hour (of days: the first hour, and the first one after them).
"""

MISSING_VALUE = "(none)"
"""The value that workloads without the label are counted under."""

NAMESPACE_IDS = "SELECT id FROM namespace_name WHERE cluster = $1 AND name = ANY($2::text[])"

_SUMS = """
    coalesce(sum(p.allocated), 0)::bigint AS allocated, coalesce(sum(p.idle), 0)::bigint AS idle,
    coalesce(sum(p.cost), 0) AS cost, sum(p.energy)::bigint AS energy, coalesce(max(p.samples), 0) AS samples,
    round((sum(p.utilization * p.allocated)
        / nullif(sum(p.allocated) FILTER (WHERE p.utilization IS NOT NULL), 0))::numeric, 4)::float8 AS utilization,
    CASE WHEN count(*) = 1 THEN max(p.highest) END AS highest,
    CASE WHEN count(*) = 1 THEN min(p.lowest) END AS lowest,
    CASE WHEN count(*) = 1 THEN max(p.p50) END AS p50,
    CASE WHEN count(*) = 1 THEN max(p.p95) END AS p95
"""
CLUSTER_HOURS = f"""
SELECT h.cluster, h.hour, h.capacity, h.gpus, created_at, updated_at, observed, u.*
FROM cluster_hour AS h JOIN accounted_hour USING (cluster, hour)
CROSS JOIN LATERAL (
    SELECT {_SUMS} FROM namespace_hour AS p
    WHERE p.cluster = $1 AND p.hour = h.hour AND p.namespace = ANY($6::int[])
) AS u
WHERE h.cluster = $1 AND h.hour BETWEEN $2 AND $3
ORDER BY h.hour {{direction}} LIMIT $4 OFFSET $5
"""  # noqa: S608

# $4 are the ids of the namespaces, $5 and $6 the type and key of the label. Only configured keys have statistics.
_VALUE = f"coalesce(nullif((CASE $5 WHEN 'label' THEN w.labels ELSE w.annotations END) ->> $6, ''), '{MISSING_VALUE}')"
_IS_CONFIGURED = "EXISTS (SELECT FROM label_name WHERE cluster = $1 AND type = $5 AND key = $6)"
_LABEL_ROWS = f"""
SELECT p.hour, {_VALUE} AS value, count(DISTINCT (w.namespace, w.kind, w.name, w.uid)) AS workloads, {_SUMS}
FROM workload_hour AS p JOIN workload AS w ON w.id = p.workload
WHERE p.cluster = $1 AND p.hour BETWEEN $2 AND $3 AND p.namespace = ANY($4::int[])
    AND ($7 = '' OR {_VALUE} = $7) AND {_IS_CONFIGURED}
GROUP BY 1, 2
"""  # noqa: S608
LABEL_HOURS = f"""
SELECT r.*, $5 AS type, $6 AS key, coalesce(n.id, 0) AS label, created_at, updated_at, observed
FROM ({_LABEL_ROWS}) AS r
LEFT JOIN label_name AS n ON n.cluster = $1 AND n.type = $5 AND n.key = $6 AND n.value = r.value
JOIN accounted_hour AS a ON a.cluster = $1 AND a.hour = r.hour
ORDER BY r.hour {{direction}}, r.value {{direction}} LIMIT $8 OFFSET $9
"""  # noqa: S608
LABEL_COUNT = f"SELECT count(*) FROM ({_LABEL_ROWS}) AS r"  # noqa: S608
LABEL_VALUES = f"""
SELECT DISTINCT {_VALUE} AS name FROM workload AS w
WHERE w.cluster = $1 AND w.namespace = ANY($4::int[]) AND {_IS_CONFIGURED} AND EXISTS (
    SELECT FROM workload_hour AS h WHERE h.cluster = $1 AND h.workload = w.id AND h.hour BETWEEN $2 AND $3
)
"""  # noqa: S608

# Of days, from the `rows` of namespaces or workloads: $4 are the ids of the namespaces, too.
_DAY_SUMS = """
    coalesce(sum(allocated), 0) AS allocated, coalesce(sum(idle), 0) AS idle, coalesce(sum(cost), 0) AS cost,
    sum(energy) AS energy, coalesce(sum(measured), 0) AS measured, coalesce(sum(used), 0) AS used
"""
DAY_TOTALS = f"""
SELECT {_DAY_SUMS} FROM {{rows}} AS d
WHERE cluster = $1 AND hour >= $2 AND hour < $3 AND member = ANY($4::int[])
"""  # noqa: S608
DAYS_BY_LABEL = f"""
SELECT {_VALUE} AS name, {_DAY_SUMS} FROM {{rows}} AS d JOIN workload AS w ON w.id = d.member
WHERE d.cluster = $1 AND hour >= $2 AND hour < $3 AND w.namespace = ANY($4::int[])
    AND {_IS_CONFIGURED}
GROUP BY 1 ORDER BY 2 DESC, 1
"""  # noqa: S608

# Over time, from `rows` of hours or days.
_SERIES_SUMS = "sum(allocated) AS allocated, sum(cost) AS cost, sum(energy) AS energy"
_SERIES_ROWS = "(SELECT hour, {member} AS member, allocated, cost, energy FROM {rows}) AS r"
CLUSTER_SERIES = f"""
SELECT hour, {_SERIES_SUMS} FROM {_SERIES_ROWS} WHERE member = ANY($4::int[]) GROUP BY hour
"""  # noqa: S608
LABEL_SERIES = f"""
SELECT hour, '' AS namespace, '' AS kind, {_VALUE} AS name, '' AS uid, {_SERIES_SUMS}
FROM {_SERIES_ROWS} JOIN workload AS w ON w.id = r.member
WHERE w.cluster = $1 AND w.namespace = ANY($4::int[]) AND {_IS_CONFIGURED} AND {_VALUE} = ANY($7::text[])
GROUP BY 1, 4
"""  # noqa: S608
