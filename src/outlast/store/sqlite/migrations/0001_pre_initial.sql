-- The first schema. Times are microseconds since 1970; lease times are nanoseconds since the boot that stands beside them.
-- Keys begin with tenant and run, no sequence is shared.

CREATE TABLE store (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    timeline TEXT NOT NULL
) STRICT;

INSERT INTO store (id, timeline) VALUES (1, lower(hex(randomblob(16))));

CREATE TABLE worker (
    worker     TEXT NOT NULL PRIMARY KEY,
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    build      TEXT NOT NULL,
    workflows  TEXT NOT NULL,              -- JSON array of names
    lease      INTEGER NOT NULL,           -- microseconds
    boot       TEXT NOT NULL,
    renewed    INTEGER NOT NULL            -- lease time of the last renewal
) STRICT, WITHOUT ROWID;

-- The head of a run. `due` is since or from when it can be claimed; NULL while it is owned, paused, closed or waits for mail.
CREATE TABLE run (
    tenant       TEXT NOT NULL,
    run_id       TEXT NOT NULL,
    generation   INTEGER NOT NULL,
    workflow     TEXT NOT NULL,
    fingerprint  TEXT NOT NULL,
    status       TEXT NOT NULL,
    reason       TEXT NOT NULL DEFAULT '',
    owner        TEXT,
    epoch        INTEGER NOT NULL,
    version      INTEGER NOT NULL DEFAULT 0,
    next_seq     INTEGER NOT NULL,
    digest       BLOB NOT NULL DEFAULT x'',
    wake_at      INTEGER,
    mail         INTEGER NOT NULL DEFAULT 0,
    lapses       INTEGER NOT NULL DEFAULT 0,
    created_at   INTEGER NOT NULL,
    changed_at   INTEGER NOT NULL,
    note         BLOB NOT NULL DEFAULT x'',
    open         INTEGER NOT NULL DEFAULT 1,
    due          INTEGER,
    calls        INTEGER NOT NULL DEFAULT 0, -- unconsumed mail that offers the run
    unfit_builds TEXT NOT NULL DEFAULT '',   -- a line of JSON text for each, with a line feed before, between and after
    stopped_boot TEXT,                       -- when the last owner could last have begun an attempt
    stopped      INTEGER,
    ended_by     TEXT NOT NULL DEFAULT '',   -- who terminated it
    PRIMARY KEY (tenant, run_id)
) STRICT, WITHOUT ROWID;

-- Closed runs stand in neither of these two.
CREATE INDEX run_due ON run (workflow, due) WHERE due IS NOT NULL;
CREATE INDEX run_owner ON run (owner, mail) WHERE owner IS NOT NULL;
-- For lists. By status too: a few failed ones among a hundred thousand are found without reading the others.
CREATE INDEX run_created ON run (tenant, created_at, run_id);
CREATE INDEX run_status ON run (tenant, status, created_at, run_id);

CREATE TABLE entry (
    tenant     TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    generation INTEGER NOT NULL,
    seq        INTEGER NOT NULL,
    turn       INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    operation  TEXT NOT NULL,
    name       TEXT NOT NULL,
    at         INTEGER NOT NULL,
    body       BLOB NOT NULL,
    PRIMARY KEY (tenant, run_id, generation, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE operation (
    tenant    TEXT NOT NULL,
    run_id    TEXT NOT NULL,
    operation TEXT NOT NULL,
    kind      TEXT NOT NULL,
    name      TEXT NOT NULL,
    failures  INTEGER NOT NULL,
    due_at    INTEGER,
    detail    BLOB NOT NULL,
    PRIMARY KEY (tenant, run_id, operation)
) STRICT, WITHOUT ROWID;

-- The inbox. A consumed message stays without its body, so that the same one is recognised when it is sent again.
CREATE TABLE message (
    tenant     TEXT NOT NULL,
    run_id     TEXT NOT NULL,
    number     INTEGER NOT NULL,
    message_id TEXT NOT NULL,
    generation INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    name       TEXT NOT NULL,
    sender     TEXT NOT NULL,
    at         INTEGER NOT NULL,
    consumed   INTEGER NOT NULL DEFAULT 0,
    body       BLOB NOT NULL,
    PRIMARY KEY (tenant, run_id, number)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX message_id ON message (tenant, run_id, generation, message_id);
CREATE INDEX message_unread ON message (tenant, run_id, generation, number) WHERE consumed = 0;

CREATE TABLE outbox (
    tenant        TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    number        INTEGER NOT NULL,
    target_tenant TEXT NOT NULL,
    target_run_id TEXT NOT NULL,
    message_id    TEXT NOT NULL,
    kind          TEXT NOT NULL,
    name          TEXT NOT NULL,
    sender        TEXT NOT NULL,
    at            INTEGER NOT NULL,
    body          BLOB NOT NULL,
    PRIMARY KEY (tenant, run_id, number)
) STRICT, WITHOUT ROWID;

CREATE INDEX outbox_age ON outbox (at, tenant, run_id, number);

CREATE TABLE approval (
    tenant         TEXT NOT NULL,
    run_id         TEXT NOT NULL,
    generation     INTEGER NOT NULL,
    approval_id    TEXT NOT NULL,
    operation      TEXT NOT NULL,
    role           TEXT NOT NULL,
    subject_sha256 TEXT NOT NULL,
    expires_at     INTEGER NOT NULL,
    use_by         INTEGER NOT NULL,
    covers         TEXT NOT NULL,            -- JSON array of {effect, match_sha256}
    spent          TEXT NOT NULL,            -- JSON array: for each cover the operation it was spent to, or ''
    state          TEXT NOT NULL,
    requested_at   INTEGER NOT NULL,
    decided_at     INTEGER,
    decided_by     TEXT NOT NULL DEFAULT '',
    body           BLOB NOT NULL,
    PRIMARY KEY (tenant, run_id, generation, approval_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX approval_pending ON approval (tenant, requested_at) WHERE state = 'pending';

CREATE TABLE control (
    tenant  TEXT NOT NULL,
    name    TEXT NOT NULL,
    version INTEGER NOT NULL,
    body    BLOB NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
