-- When a server followed a cluster, so that an hour can tell which part of it was observed. Spans may overlap.
CREATE TABLE observed_span (
    cluster int NOT NULL REFERENCES accounted_cluster,
    started_at double precision NOT NULL,
    ended_at double precision NOT NULL,
    PRIMARY KEY (cluster, started_at)
);
-- Interruptions before this version are unknown.
INSERT INTO observed_span SELECT id, since, seen_at FROM accounted_cluster WHERE since < seen_at;

ALTER TABLE accounted_hour ADD COLUMN observed int NOT NULL DEFAULT 3600000;
COMMENT ON COLUMN accounted_hour.observed IS 'milliseconds of the hour in which a server followed the cluster';
UPDATE accounted_hour SET observed = greatest(0, least(3600, (hour + 1) * 3600.0 - since)) * 1000
FROM accounted_cluster WHERE accounted_cluster.id = cluster AND hour * 3600.0 <= since;

ALTER TABLE cluster_hour ADD COLUMN gpus int;
COMMENT ON COLUMN cluster_hour.gpus IS
    'the number of GPUs that the cluster had for most of the observed time; null in hours of earlier versions';

-- The order of the rows of an hour by namespace, kind, name and uid. 0 in hours of earlier versions, which
-- stay in the order of their ids until they are recomputed.
ALTER TABLE workload_hour ADD COLUMN place int NOT NULL DEFAULT 0;
DROP INDEX workload_hour_cluster_namespace_kind_hour_workload_utilizat_idx;
DROP INDEX workload_hour_cluster_kind_hour_workload_utilization_idx;
DROP INDEX workload_hour_cluster_utilization_hour_workload_namespace_k_idx;
CREATE INDEX workload_hour_by_time ON workload_hour (cluster, hour, place, workload);
CREATE INDEX workload_hour_by_namespace ON workload_hour (cluster, namespace, kind, hour, place, workload)
    INCLUDE (utilization);
CREATE INDEX workload_hour_by_kind ON workload_hour (cluster, kind, hour, place, workload) INCLUDE (utilization);
CREATE INDEX workload_hour_by_utilization ON workload_hour (cluster, utilization, hour, place, workload)
    INCLUDE (namespace, kind);

-- Filters by label and annotation.
CREATE INDEX workload_labels ON workload USING gin (labels);
CREATE INDEX workload_annotations ON workload USING gin (annotations);
