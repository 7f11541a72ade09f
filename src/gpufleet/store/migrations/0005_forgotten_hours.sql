-- From which hour on a cluster's workload rows are all there: sums of days before can't be made anew from hours.
ALTER TABLE accounted_cluster ADD COLUMN workloads_from int NOT NULL DEFAULT 0;
COMMENT ON COLUMN accounted_cluster.workloads_from IS 'the hours of workloads before this one were forgotten';
