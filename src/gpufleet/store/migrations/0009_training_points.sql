-- How many points a series has, so that a limit per workload can be checked without counting them.
ALTER TABLE training_series ADD COLUMN points bigint NOT NULL DEFAULT 0;
UPDATE training_series SET points = counted.points
FROM (SELECT series, count(*) AS points FROM training_point GROUP BY series) AS counted WHERE series = id;
