-- Attempts of remote steps that wait for a worker, or are with one. `due` is since or from when a task may be taken, and gives the
-- order; `since` is since or from when it waits, or when its worker took it; `set_at` is the wall time at which `due` was set.

CREATE TABLE task (
    tenant     TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    operation  TEXT NOT NULL,
    generation INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    queue      TEXT NOT NULL,
    name       TEXT NOT NULL,
    worker     TEXT,
    due        INTEGER NOT NULL,
    since      INTEGER NOT NULL,
    set_at     INTEGER NOT NULL,
    taken      INTEGER NOT NULL DEFAULT 0,   -- how often a worker took it
    lapses     INTEGER NOT NULL DEFAULT 0,   -- how many of those died with it
    held       INTEGER NOT NULL DEFAULT 0,   -- 1 while its run is paused: nobody takes it
    arguments  BLOB NOT NULL,
    progress   BLOB NOT NULL DEFAULT x'',    -- JSON of what the last attempt has said of itself
    PRIMARY KEY (tenant, run_id, operation)
) STRICT, WITHOUT ROWID;

CREATE INDEX task_due ON task (queue, name, due) WHERE worker IS NULL AND held = 0;
CREATE INDEX task_set ON task (queue, name, set_at) WHERE worker IS NULL AND held = 0;
CREATE INDEX task_worker ON task (worker) WHERE worker IS NOT NULL;

ALTER TABLE worker ADD COLUMN queues TEXT NOT NULL DEFAULT '[]'; -- JSON array of names
