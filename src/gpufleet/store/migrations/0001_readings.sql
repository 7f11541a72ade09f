-- Recent readings of GPUs, for clusters without a Prometheus (see gpufleet/store/readings.py).

-- The GPUs of a refresh, in the order of its columns; the same fleet is written once.
CREATE TABLE reading_layout (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster text NOT NULL,
    digest bytea NOT NULL,
    gpus bytea NOT NULL,
    seen_at double precision NOT NULL,
    UNIQUE (cluster, digest)
);

-- One quantity of all GPUs at one refresh: what was measured in the last minutes.
CREATE TABLE reading_tick (
    cluster text NOT NULL,
    quantity text NOT NULL,
    taken_at double precision NOT NULL,
    layout int NOT NULL REFERENCES reading_layout,
    columns bytea NOT NULL,
    PRIMARY KEY (cluster, quantity, taken_at)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);
ALTER TABLE reading_tick ALTER COLUMN columns SET STORAGE EXTERNAL;

-- One quantity of one node's GPUs over some minutes; partitions are made and dropped by time.
CREATE TABLE reading_chunk (
    cluster text NOT NULL,
    quantity text NOT NULL,
    node text NOT NULL,
    start double precision NOT NULL,
    columns bytea NOT NULL
) PARTITION BY RANGE (start);
CREATE INDEX ON reading_chunk (cluster, quantity, node, start);
ALTER TABLE reading_chunk ALTER COLUMN columns SET STORAGE EXTERNAL;

-- What only its newest state matters of: processes, holders, faults, file systems, ports.
CREATE TABLE reading_state (
    cluster text NOT NULL,
    kind text NOT NULL,
    taken_at double precision NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (cluster, kind)
) WITH (fillfactor = 50);

-- Numbers that training jobs report.
CREATE TABLE training_series (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    workload_uid text NOT NULL,
    metric text NOT NULL,
    rank int NOT NULL,
    UNIQUE (workload_uid, metric, rank)
);
COMMENT ON COLUMN training_series.rank IS '-1: the job as a whole';

CREATE TABLE training_point (
    series bigint NOT NULL REFERENCES training_series ON DELETE CASCADE,
    at double precision NOT NULL,
    value double precision NOT NULL,
    PRIMARY KEY (series, at)
);
