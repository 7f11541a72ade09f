-- How long each cluster wants its data kept (see gpufleet/store/retention.py).
CREATE TABLE retention (
    cluster text NOT NULL,
    what text NOT NULL,
    seconds double precision NOT NULL,
    told_at double precision NOT NULL,
    PRIMARY KEY (what, cluster)
);
COMMENT ON COLUMN retention.what IS 'the setting that says so';
COMMENT ON COLUMN retention.told_at IS 'when a server last said so, Unix seconds';
