-- Runs that start, watch and end other runs.

ALTER TABLE run ADD COLUMN origin TEXT NOT NULL DEFAULT '';       -- of a child: the operation that started it
ALTER TABLE run ADD COLUMN outbox_number INTEGER NOT NULL DEFAULT 0; -- of the last item that was put into its outbox

-- What the relay is to do: `kind`, and for whom. Nothing has ever been put here before.
ALTER TABLE outbox ADD COLUMN generation INTEGER NOT NULL DEFAULT 1;
ALTER TABLE outbox ADD COLUMN operation TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN target_generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE outbox ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE outbox ADD COLUMN reason TEXT NOT NULL DEFAULT '';

-- Who is told of the end of an open run.
CREATE TABLE watch (
    tenant             TEXT NOT NULL,
    run_id             TEXT NOT NULL,
    watcher_tenant     TEXT NOT NULL,
    watcher_run_id     TEXT NOT NULL,
    watcher_generation INTEGER NOT NULL,
    operation          TEXT NOT NULL,
    PRIMARY KEY (tenant, run_id, watcher_tenant, watcher_run_id, watcher_generation, operation)
) STRICT, WITHOUT ROWID;
