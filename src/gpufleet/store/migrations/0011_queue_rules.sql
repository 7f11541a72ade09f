-- What the GpuQueues of a cluster allowed, and when: a replay of its allocations needs both.
CREATE TABLE queue_rules (
    cluster int NOT NULL REFERENCES accounted_cluster,
    started_at double precision NOT NULL,
    ended_at double precision NOT NULL,
    rules jsonb NOT NULL,
    PRIMARY KEY (cluster, started_at)
);
CREATE UNIQUE INDEX queue_rules_open ON queue_rules (cluster) WHERE ended_at = 'infinity';
COMMENT ON COLUMN queue_rules.ended_at IS 'infinity while they apply';
