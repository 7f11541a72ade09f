-- Whose series it is, and from when its points are, so that old ones are found without looking at all.
ALTER TABLE training_series
    ADD COLUMN cluster text NOT NULL DEFAULT '',
    ADD COLUMN oldest double precision NOT NULL DEFAULT '-infinity';
COMMENT ON COLUMN training_series.cluster IS 'empty where it was not written down';
COMMENT ON COLUMN training_series.oldest IS 'no point is older; Unix seconds';
CREATE INDEX ON training_series (cluster, oldest);
