-- Decisions on requests that stick: each answers what is asked later of the same kind, until it is used up, over, or taken back.

CREATE TABLE sticky (
    tenant        TEXT NOT NULL,
    sticky_id     TEXT NOT NULL,
    run_id        TEXT NOT NULL,
    incarnation   INTEGER NOT NULL,            -- of the run, when it was made
    workflow      TEXT NOT NULL,
    approval_id   TEXT NOT NULL,
    role          TEXT NOT NULL,
    approved      INTEGER NOT NULL,
    decided_by    TEXT NOT NULL,
    behalf        TEXT NOT NULL,
    made_at       INTEGER NOT NULL,
    effect        TEXT NOT NULL,
    reach         TEXT NOT NULL,               -- call, turn, run or workflow
    version       TEXT NOT NULL,
    agent         TEXT NOT NULL,
    server        TEXT NOT NULL,
    turn          TEXT NOT NULL,
    action_sha256 TEXT NOT NULL,               -- empty: the arguments fit what is asked of them
    args          BLOB NOT NULL,               -- JSON object: canonical JSON by name
    predicates    BLOB NOT NULL,               -- JSON array
    uses_given    INTEGER,                     -- NULL: any number
    span          INTEGER,                     -- microseconds
    reason        BLOB NOT NULL,
    expires_at    INTEGER,
    uses          INTEGER,                     -- left
    used          INTEGER NOT NULL,
    revoked_at    INTEGER,
    revoked_by    TEXT NOT NULL,
    revoked_why   BLOB NOT NULL,
    PRIMARY KEY (tenant, sticky_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX sticky_listed ON sticky (tenant, made_at, sticky_id);
CREATE INDEX sticky_of_run ON sticky (tenant, effect, run_id) WHERE revoked_at IS NULL AND reach <> 'workflow';
CREATE INDEX sticky_of_workflow ON sticky (tenant, effect, workflow) WHERE revoked_at IS NULL AND reach = 'workflow';
