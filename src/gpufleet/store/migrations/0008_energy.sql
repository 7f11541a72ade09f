-- Energy of allocated GPUs in millijoules, from the readings of power. Null without readings and in earlier hours.
ALTER TABLE cluster_hour ADD COLUMN energy bigint;
ALTER TABLE namespace_hour ADD COLUMN energy bigint;
ALTER TABLE label_hour ADD COLUMN energy bigint;
ALTER TABLE workload_hour ADD COLUMN energy bigint;
ALTER TABLE usage_day ADD COLUMN energy numeric;
