-- Who does the work that one server does for all, by job. Every transaction of that work checks its epoch.
CREATE TABLE leader (
    job text PRIMARY KEY,
    holder text NOT NULL,
    session int NOT NULL,
    epoch bigint NOT NULL,
    expires_at timestamptz NOT NULL,
    gap_since timestamptz,
    -- makes a new epoch wait for transactions that have locked the old one FOR KEY SHARE; a renewal does not wait
    UNIQUE (job, epoch)
);
COMMENT ON COLUMN leader.session IS 'the process id of the leader''s session in PostgreSQL';
COMMENT ON COLUMN leader.gap_since IS
    'when the last leader was seen before more than a day without one; nothing is pruned until it is null again';

-- What was pruned, by whom. Times are Unix seconds.
CREATE TABLE prune_run (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT now(),
    holder text NOT NULL,
    origin text NOT NULL,
    cluster text NOT NULL,
    rows bigint NOT NULL,
    oldest double precision NOT NULL,
    newest double precision NOT NULL
);
COMMENT ON COLUMN prune_run.origin IS 'the table or partition';
COMMENT ON COLUMN prune_run.cluster IS 'empty for a partition of all clusters';

-- The reports that a server has begun to send, so that each is sent once.
CREATE TABLE sent_report (
    cluster text NOT NULL,
    period text NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (cluster, period)
);
