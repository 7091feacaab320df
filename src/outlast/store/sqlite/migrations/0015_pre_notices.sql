-- Word that people get of a request: one row for each time that they are told of it. They go with the request's wait. `due_at` of one that
-- somebody has taken is until when he has it.

CREATE TABLE notice (
    tenant      TEXT NOT NULL,
    run_id      TEXT NOT NULL,
    generation  INTEGER NOT NULL,
    approval_id TEXT NOT NULL,
    notice      TEXT NOT NULL,               -- asked, reminder-1, …
    due_at      INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL,            -- of the request
    tries       INTEGER NOT NULL DEFAULT 0,
    state       TEXT NOT NULL DEFAULT 'open', -- open, sent or failed
    reached     TEXT NOT NULL DEFAULT '[]',  -- JSON array: names of channels
    trouble     BLOB NOT NULL DEFAULT x'',
    PRIMARY KEY (tenant, run_id, generation, approval_id, notice)
) STRICT, WITHOUT ROWID;

CREATE INDEX notice_due ON notice (due_at) WHERE state = 'open';
CREATE INDEX notice_of_tenant_due ON notice (tenant, due_at) WHERE state = 'open';

INSERT INTO notice (tenant, run_id, generation, approval_id, notice, due_at, expires_at)
SELECT tenant, run_id, generation, approval_id, 'asked', requested_at, expires_at FROM approval WHERE state = 'pending';
