-- Earlier estimates of start times and their errors, from which the intervals of later estimates come.
CREATE TABLE start_calibration (
    cluster text PRIMARY KEY,
    estimates jsonb NOT NULL
);
