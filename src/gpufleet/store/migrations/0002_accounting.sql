-- Accounting: who held GPUs when, snapshots, hourly statistics, and workloads that are over.
-- Hours are numbered: Unix seconds / 3600. Amounts of GPU time are whole millisecond-millionths of a GPU.
-- Tables partitioned by `hour` have a partition a month (see gpufleet/store/months.py).

CREATE TABLE accounted_cluster (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    since double precision NOT NULL,
    seen_at double precision NOT NULL
);
COMMENT ON COLUMN accounted_cluster.since IS 'from when on its holders are known, Unix seconds';
COMMENT ON COLUMN accounted_cluster.seen_at IS 'until when its holders are known, Unix seconds';

-- Which hours are done, and how many workload rows each has.
CREATE TABLE accounted_hour (
    cluster int NOT NULL REFERENCES accounted_cluster,
    hour int NOT NULL,
    measured boolean NOT NULL,
    stale boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (cluster, hour)
);
COMMENT ON COLUMN accounted_hour.measured IS 'the metric source answered; if not, the hour is tried again';
COMMENT ON COLUMN accounted_hour.stale IS 'something was learned of the hour after it was done';

CREATE TABLE holding (
    cluster int NOT NULL REFERENCES accounted_cluster,
    pod_uid text NOT NULL,
    started_at double precision NOT NULL,
    ended_at double precision NOT NULL,
    facts jsonb NOT NULL,
    PRIMARY KEY (cluster, pod_uid, started_at)
);
CREATE INDEX ON holding (cluster, ended_at);
COMMENT ON COLUMN holding.ended_at IS 'infinity while it lasts';

CREATE TABLE capacity (
    cluster int NOT NULL REFERENCES accounted_cluster,
    node text NOT NULL,
    started_at double precision NOT NULL,
    ended_at double precision NOT NULL,
    facts jsonb NOT NULL,
    PRIMARY KEY (cluster, node, started_at)
);
CREATE INDEX ON capacity (cluster, ended_at);

-- Names, once each.
CREATE TABLE namespace_name (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster int NOT NULL REFERENCES accounted_cluster,
    name text NOT NULL,
    UNIQUE (cluster, name)
);

CREATE TABLE kind_name (
    id smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE
);

CREATE TABLE label_name (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster int NOT NULL REFERENCES accounted_cluster,
    type text NOT NULL,
    key text NOT NULL,
    value text NOT NULL,
    UNIQUE (cluster, type, key, value)
);

-- A workload as it was described in an hour; other labels make another row.
CREATE TABLE workload (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster int NOT NULL REFERENCES accounted_cluster,
    namespace int NOT NULL REFERENCES namespace_name,
    kind smallint NOT NULL REFERENCES kind_name,
    name text NOT NULL,
    uid text NOT NULL,
    digest bytea NOT NULL,
    source text NOT NULL,
    labels jsonb NOT NULL,
    annotations jsonb NOT NULL,
    UNIQUE (cluster, namespace, kind, name, uid, digest)
);
CREATE INDEX ON workload (cluster, name);

CREATE TABLE cluster_hour (
    cluster int NOT NULL,
    hour int NOT NULL,
    capacity double precision NOT NULL,
    allocated bigint NOT NULL,
    idle bigint NOT NULL,
    cost double precision NOT NULL,
    samples int NOT NULL,
    utilization double precision,
    highest double precision,
    lowest double precision,
    p50 double precision,
    p95 double precision,
    workloads int NOT NULL,
    PRIMARY KEY (cluster, hour)
) PARTITION BY RANGE (hour);

CREATE TABLE namespace_hour (
    cluster int NOT NULL,
    hour int NOT NULL,
    namespace int NOT NULL,
    allocated bigint NOT NULL,
    idle bigint NOT NULL,
    cost double precision NOT NULL,
    samples int NOT NULL,
    utilization double precision,
    highest double precision,
    lowest double precision,
    p50 double precision,
    p95 double precision,
    workloads int NOT NULL,
    PRIMARY KEY (cluster, hour, namespace)
) PARTITION BY RANGE (hour);
CREATE INDEX ON namespace_hour (cluster, namespace, hour);

CREATE TABLE label_hour (
    cluster int NOT NULL,
    hour int NOT NULL,
    label int NOT NULL,
    allocated bigint NOT NULL,
    idle bigint NOT NULL,
    cost double precision NOT NULL,
    samples int NOT NULL,
    utilization double precision,
    highest double precision,
    lowest double precision,
    p50 double precision,
    p95 double precision,
    workloads int NOT NULL,
    PRIMARY KEY (cluster, hour, label)
) PARTITION BY RANGE (hour);
CREATE INDEX ON label_hour (cluster, label, hour);

CREATE TABLE workload_hour (
    allocated bigint NOT NULL,
    idle bigint NOT NULL,
    cost double precision NOT NULL,
    utilization double precision,
    highest double precision,
    lowest double precision,
    p50 double precision,
    p95 double precision,
    requested double precision NOT NULL,
    mean_replicas double precision NOT NULL,
    mean_memory double precision,
    most_memory double precision,
    total_memory double precision,
    cluster int NOT NULL,
    hour int NOT NULL,
    workload int NOT NULL,
    namespace int NOT NULL,
    samples int NOT NULL,
    most_replicas int NOT NULL,
    fewest_replicas int NOT NULL,
    kind smallint NOT NULL,
    status text NOT NULL,
    PRIMARY KEY (cluster, hour, workload) INCLUDE (utilization)
) PARTITION BY RANGE (hour);
-- one index for each way of narrowing a page, and one for the order by utilization (see workload_pages.py)
CREATE INDEX ON workload_hour (cluster, namespace, kind, hour, workload) INCLUDE (utilization);
CREATE INDEX ON workload_hour (cluster, kind, hour, workload) INCLUDE (utilization);
CREATE INDEX ON workload_hour (cluster, workload, hour) INCLUDE (utilization);
CREATE INDEX ON workload_hour (cluster, utilization, hour, workload) INCLUDE (namespace, kind);

-- How many workload rows an hour has, for every way of narrowing them; 0 stands for all.
CREATE TABLE workload_count (
    cluster int NOT NULL,
    hour int NOT NULL,
    namespace int NOT NULL,
    kind smallint NOT NULL,
    rows int NOT NULL,
    PRIMARY KEY (cluster, namespace, kind, hour) INCLUDE (rows)
) PARTITION BY RANGE (hour);

-- The sums of a day, from which reports are made: grouping is namespace, label or workload.
CREATE TABLE usage_day (
    cluster int NOT NULL,
    hour int NOT NULL,
    grouping text NOT NULL,
    member int NOT NULL,
    allocated numeric NOT NULL,
    idle numeric NOT NULL,
    cost numeric NOT NULL,
    measured numeric NOT NULL,
    used numeric NOT NULL,
    PRIMARY KEY (cluster, grouping, hour, member)
) PARTITION BY RANGE (hour);
COMMENT ON COLUMN usage_day.hour IS 'the first hour of the day';
COMMENT ON COLUMN usage_day.measured IS 'allocated GPU time whose utilization is known';
COMMENT ON COLUMN usage_day.used IS 'that time multiplied by its utilization in percent';

CREATE TABLE snapshot (
    cluster int NOT NULL,
    hour int NOT NULL,
    taken_at int NOT NULL,
    capacity int NOT NULL,
    allocated double precision NOT NULL,
    utilization double precision,
    details jsonb NOT NULL,
    readings bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (cluster, hour, taken_at)
) PARTITION BY RANGE (hour);

-- Workloads that are gone from their source.
CREATE TABLE ended_workload (
    cluster text NOT NULL,
    uid text NOT NULL,
    ended_at double precision NOT NULL,
    record jsonb NOT NULL,
    PRIMARY KEY (cluster, uid)
);
CREATE INDEX ON ended_workload (cluster, ended_at);
