-- A pod or a node has at most one open period, and no moment counts twice.
-- Repair what earlier versions left: where periods overlap, the earlier one ends where the next one begins.
-- The hours of that time are stale; the server recomputes those of the last two days.
CREATE TEMPORARY TABLE overlap ON COMMIT DROP AS
SELECT * FROM (
    SELECT 'capacity' AS origin, cluster, node AS holder, started_at, ended_at,
        lead(started_at) OVER (PARTITION BY cluster, node ORDER BY started_at) AS next
    FROM capacity
    UNION ALL
    SELECT 'holding', cluster, pod_uid, started_at, ended_at,
        lead(started_at) OVER (PARTITION BY cluster, pod_uid ORDER BY started_at)
    FROM holding
) AS found WHERE ended_at > next;

UPDATE capacity SET ended_at = next FROM overlap
WHERE origin = 'capacity' AND capacity.cluster = overlap.cluster AND node = holder
    AND capacity.started_at = overlap.started_at;
UPDATE holding SET ended_at = next FROM overlap
WHERE origin = 'holding' AND holding.cluster = overlap.cluster AND pod_uid = holder
    AND holding.started_at = overlap.started_at;
UPDATE accounted_hour SET stale = true FROM overlap
WHERE accounted_hour.cluster = overlap.cluster AND (hour + 1) * 3600.0 > next AND hour * 3600.0 < overlap.ended_at;

CREATE UNIQUE INDEX capacity_open ON capacity (cluster, node) WHERE ended_at = 'infinity';
CREATE UNIQUE INDEX holding_open ON holding (cluster, pod_uid) WHERE ended_at = 'infinity';
