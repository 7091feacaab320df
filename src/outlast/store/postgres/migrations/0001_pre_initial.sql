-- The first schema. Times are microseconds since 1970. Keys begin with tenant and run, no sequence is shared, and no statement joins two
-- runs: every table of runs can be partitioned by hash of (tenant, run_id). `{of_run}` and `{hot}` are filled in when this is applied.

CREATE TABLE store (
    id       integer PRIMARY KEY CHECK (id = 1),
    timeline text NOT NULL,
    history  text NOT NULL DEFAULT '' -- of the cluster, as it was last seen: system identifier and timeline of its log
);

INSERT INTO store (id, timeline) VALUES (1, replace(gen_random_uuid()::text, '-', ''));

-- The store's time. Leases, timers and deadlines are judged by this alone.
CREATE FUNCTION micros() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- Stops a transaction that was prepared on rows which others have written meanwhile.
CREATE FUNCTION must(holds boolean) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF holds IS NOT TRUE THEN
        RAISE EXCEPTION 'another transaction came between' USING ERRCODE = 'OL001';
    END IF;
END $$;

-- Stops a transaction on a server that has another history than the one which its process has looked at: a pooler has changed servers.
-- A history is the cluster, and the timeline of its log: another one after a promotion, and after a recovery from a backup.
CREATE FUNCTION must_go_on(history text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'the pooler leads to a standby' USING ERRCODE = 'read_only_sql_transaction';
    ELSIF history <> (SELECT system_identifier FROM pg_control_system()) || '/' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) THEN
        RAISE EXCEPTION 'the pooler leads to a server with another history' USING ERRCODE = 'OL002';
    END IF;
END $$;

-- One row for each worker, written by each of its commits: half empty pages, so that a new version finds room beside the old one and no
-- index is touched; cleaned when a few rows are dead, since the table is tiny and read by every look.
CREATE TABLE worker (
    worker    text COLLATE "C" PRIMARY KEY,
    host      text NOT NULL,
    pid       bigint NOT NULL,
    build     text NOT NULL,
    workflows text NOT NULL,               -- JSON array of names
    lease     bigint NOT NULL,             -- microseconds
    boot      text NOT NULL,
    renewed   bigint NOT NULL,             -- the store's time of the last renewal
    queues    text NOT NULL,               -- JSON array of names
    paused    boolean NOT NULL,            -- it moves only what is released
    report    bytea NOT NULL DEFAULT ''    -- JSON: what it has said of itself last
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);

-- The head of a run. `due` is since or from when it can be claimed; NULL while it is owned, paused, closed or waits for mail. A row of
-- generation 0 is no run: an inbox that was sent something before its run was started.
CREATE TABLE run (
    tenant        text COLLATE "C" NOT NULL,
    run_id        text COLLATE "C" NOT NULL,
    generation    bigint NOT NULL,
    incarnation   bigint NOT NULL,          -- the generation that the last start began; later ones share its inbox
    workflow      text COLLATE "C" NOT NULL,
    fingerprint   text NOT NULL,
    status        text COLLATE "C" NOT NULL,
    reason        text NOT NULL,
    owner         text COLLATE "C",
    epoch         bigint NOT NULL,
    version       bigint NOT NULL,
    next_seq      bigint NOT NULL,
    digest        bytea NOT NULL,
    wake_at       bigint,
    mail          smallint NOT NULL,
    lapses        bigint NOT NULL,
    created_at    bigint NOT NULL,
    changed_at    bigint NOT NULL,
    note          bytea NOT NULL,
    origin        text NOT NULL,            -- of a child: the operation that started it
    ended_by      text NOT NULL,            -- who terminated it
    released      smallint NOT NULL,        -- a paused worker may move it
    restored_at   bigint,                   -- it is older than a restore
    restored_until bigint,                  -- nothing is forgotten of before
    ending        smallint NOT NULL,
    due           bigint,
    due_set_at    bigint NOT NULL,
    calls         smallint NOT NULL,        -- unconsumed mail that offers the run
    unfit_builds  text NOT NULL,            -- a line of JSON text for each, with a line feed before, between and after
    unfit         text COLLATE "C" GENERATED ALWAYS AS (CASE calls WHEN 1 THEN '' ELSE unfit_builds END) STORED,
    stopped       bigint,                   -- when the last owner could last have begun an attempt
    touched       bigint NOT NULL,          -- grows with each write to any row of the run
    message_number bigint NOT NULL,         -- of the last item of its inbox
    unread        bigint NOT NULL,          -- of the present incarnation
    outbox_number bigint NOT NULL,          -- of the last item of its outbox
    PRIMARY KEY (tenant, run_id)
) {hot};

-- Closed runs stand in none of these but the last two. A step's commit changes no column of an index: it needs no more than a place on the page.
CREATE INDEX run_due ON run (workflow, unfit, due, tenant, run_id) WHERE due IS NOT NULL;
CREATE INDEX run_due_set ON run (workflow, unfit, due_set_at, tenant, run_id) WHERE due IS NOT NULL;
CREATE INDEX run_released_due ON run (workflow, unfit, due, tenant, run_id) WHERE due IS NOT NULL AND released = 1;
CREATE INDEX run_released_due_set ON run (workflow, unfit, due_set_at, tenant, run_id) WHERE due IS NOT NULL AND released = 1;
-- Owners of these died again and again: each is taken alone.
CREATE INDEX run_suspect ON run (workflow, unfit, due, tenant, run_id) WHERE due IS NOT NULL AND lapses >= 3;
-- Runs that have not ended, however many have: those whose owners died without progress come last.
CREATE INDEX run_open ON run (lapses, tenant, run_id) WHERE status IN ('ready', 'running', 'waiting', 'blocked', 'paused');
CREATE INDEX run_owner ON run (owner, mail, lapses) WHERE owner IS NOT NULL;
-- For lists. By status too: a few failed ones among a hundred thousand are found without reading the others.
CREATE INDEX run_created ON run (tenant, created_at, run_id);
CREATE INDEX run_status ON run (tenant, status, created_at, run_id);

-- Entries are written once and never changed: pages are filled.
CREATE TABLE entry (
    tenant     text COLLATE "C" NOT NULL,
    run_id     text COLLATE "C" NOT NULL,
    generation bigint NOT NULL,
    seq        bigint NOT NULL,
    turn       bigint NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    operation  text NOT NULL,
    name       text COLLATE "C" NOT NULL,
    at         bigint NOT NULL,
    body       bytea NOT NULL,
    PRIMARY KEY (tenant, run_id, generation, seq)
) {of_run};

CREATE INDEX entry_published ON entry (tenant, run_id, generation, name, seq) WHERE kind = 'published';

CREATE TABLE operation (
    tenant    text COLLATE "C" NOT NULL,
    run_id    text COLLATE "C" NOT NULL,
    operation text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    failures  bigint NOT NULL,
    due_at    bigint,
    detail    bytea NOT NULL,
    progress  bytea NOT NULL,
    awaits    smallint NOT NULL,
    unapplied smallint NOT NULL,
    beats     bigint NOT NULL,
    heard_at  bigint,
    silence   bigint,                       -- microseconds
    begun_at  bigint,
    in_doubt  smallint NOT NULL,
    PRIMARY KEY (tenant, run_id, operation)
) {hot};

CREATE INDEX operation_doubt ON operation (tenant, run_id, operation, name) WHERE in_doubt = 1;

-- The inbox. A consumed message stays without its body, so that the same one is recognised when it is sent again.
CREATE TABLE message (
    tenant     text COLLATE "C" NOT NULL,
    run_id     text COLLATE "C" NOT NULL,
    number     bigint NOT NULL,
    message_id text COLLATE "C" NOT NULL,
    generation bigint NOT NULL,             -- that began the incarnation for which it is
    kind       text COLLATE "C" NOT NULL,
    name       text NOT NULL,
    sender     text NOT NULL,
    at         bigint NOT NULL,
    consumed   smallint NOT NULL,
    body       bytea NOT NULL,
    digest     text NOT NULL,
    result     text NOT NULL,
    answer     bytea,
    PRIMARY KEY (tenant, run_id, number)
) {hot};

CREATE UNIQUE INDEX message_id ON message (tenant, run_id, generation, message_id);
CREATE INDEX message_unread ON message (tenant, run_id, generation, number) WHERE consumed = 0;
CREATE INDEX message_update ON message (tenant, run_id, message_id, generation) WHERE kind = 'update';

CREATE TABLE outbox (
    tenant            text COLLATE "C" NOT NULL,
    run_id            text COLLATE "C" NOT NULL,
    number            bigint NOT NULL,
    target_tenant     text NOT NULL,
    target_run_id     text NOT NULL,
    kind              text NOT NULL,
    message_id        text NOT NULL,
    name              text NOT NULL,
    sender            text NOT NULL,
    at                bigint NOT NULL,
    body              bytea NOT NULL,
    generation        bigint NOT NULL,
    operation         text NOT NULL,
    target_generation bigint NOT NULL,
    origin            text NOT NULL,
    reason            text NOT NULL,
    PRIMARY KEY (tenant, run_id, number)
) {hot};

CREATE INDEX outbox_age ON outbox (at, tenant, run_id, number);

-- Who is told of the end of an open run.
CREATE TABLE watch (
    tenant             text COLLATE "C" NOT NULL,
    run_id             text COLLATE "C" NOT NULL,
    watcher_tenant     text COLLATE "C" NOT NULL,
    watcher_run_id     text COLLATE "C" NOT NULL,
    watcher_generation bigint NOT NULL,
    operation          text COLLATE "C" NOT NULL,
    PRIMARY KEY (tenant, run_id, watcher_tenant, watcher_run_id, watcher_generation, operation)
) {hot};

CREATE TABLE approval (
    tenant         text COLLATE "C" NOT NULL,
    run_id         text COLLATE "C" NOT NULL,
    generation     bigint NOT NULL,
    approval_id    text COLLATE "C" NOT NULL,
    operation      text NOT NULL,
    role           text NOT NULL,
    subject_sha256 text NOT NULL,
    expires_at     bigint NOT NULL,
    use_by         bigint NOT NULL,
    covers         text NOT NULL,           -- JSON array of {effect, match_sha256}
    spent          text NOT NULL,           -- JSON array: for each cover the operation it was spent to, or ''
    state          text COLLATE "C" NOT NULL,
    requested_at   bigint NOT NULL,
    decided_at     bigint,
    decided_by     text NOT NULL,
    body           bytea NOT NULL,
    terms          text NOT NULL,           -- JSON object
    kind           text NOT NULL,
    persons        text NOT NULL,           -- JSON: who started the run; who may not say yes
    votes          text NOT NULL,           -- JSON array of {by, at, behalf}
    PRIMARY KEY (tenant, run_id, generation, approval_id)
) {hot};

CREATE INDEX approval_pending ON approval (tenant, requested_at, run_id, approval_id) WHERE state = 'pending';
CREATE INDEX approval_of_run ON approval (tenant, run_id, requested_at, approval_id) WHERE state = 'pending';
CREATE INDEX approval_listed ON approval (tenant, requested_at, run_id, approval_id);

-- Word that people get of a request: one row for each time that they are told of it. They go with the request's wait.
CREATE TABLE notice (
    tenant      text COLLATE "C" NOT NULL,
    run_id      text COLLATE "C" NOT NULL,
    generation  bigint NOT NULL,
    approval_id text COLLATE "C" NOT NULL,
    notice      text COLLATE "C" NOT NULL,  -- asked, reminder-1, …
    due_at      bigint NOT NULL,
    expires_at  bigint NOT NULL,            -- of the request
    tries       bigint NOT NULL,
    state       text COLLATE "C" NOT NULL,  -- open, sent or failed
    reached     text NOT NULL,              -- JSON array: names of channels
    trouble     bytea NOT NULL,
    PRIMARY KEY (tenant, run_id, generation, approval_id, notice)
) {hot};

CREATE INDEX notice_due ON notice (due_at, tenant, run_id, generation, approval_id, notice) WHERE state = 'open';
CREATE INDEX notice_of_tenant_due ON notice (tenant, due_at, run_id, generation, approval_id, notice) WHERE state = 'open';

-- Attempts of remote steps that wait for a worker, or are with one. `due` is since or from when a task may be taken, and gives the order;
-- `since` is since or from when it waits, or when its worker took it; `set_at` is the time at which `due` was set.
CREATE TABLE task (
    tenant     text COLLATE "C" NOT NULL,
    run_id     text COLLATE "C" NOT NULL,
    operation  text COLLATE "C" NOT NULL,
    generation bigint NOT NULL,
    attempt    bigint NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    worker     text COLLATE "C",
    due        bigint NOT NULL,
    since      bigint NOT NULL,
    set_at     bigint NOT NULL,
    taken      bigint NOT NULL,             -- how often a worker took it
    lapses     bigint NOT NULL,             -- how many of those died with it
    held       smallint NOT NULL,           -- 1 while its run is paused: nobody takes it
    arguments  bytea NOT NULL,
    progress   bytea NOT NULL,              -- JSON of what the last attempt has said of itself
    PRIMARY KEY (tenant, run_id, operation)
) {hot};

CREATE INDEX task_due ON task (queue, name, due, tenant, run_id, operation) WHERE worker IS NULL AND held = 0;
CREATE INDEX task_set ON task (queue, name, set_at, tenant, run_id, operation) WHERE worker IS NULL AND held = 0;
CREATE INDEX task_worker ON task (worker) WHERE worker IS NOT NULL;

-- Rows of no run: roles, stops, pins and policy, each with a version; decisions that stick; requests under an idempotency key.
CREATE TABLE control (
    tenant  text COLLATE "C" NOT NULL,
    name    text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    body    bytea NOT NULL,
    PRIMARY KEY (tenant, name)
);

CREATE TABLE sticky (
    tenant        text COLLATE "C" NOT NULL,
    sticky_id     text COLLATE "C" NOT NULL,
    run_id        text COLLATE "C" NOT NULL,
    incarnation   bigint NOT NULL,          -- of the run, when it was made
    workflow      text COLLATE "C" NOT NULL,
    approval_id   text NOT NULL,
    role          text NOT NULL,
    approved      smallint NOT NULL,
    decided_by    text NOT NULL,
    behalf        text NOT NULL,
    made_at       bigint NOT NULL,
    effect        text COLLATE "C" NOT NULL,
    reach         text COLLATE "C" NOT NULL, -- call, turn, run or workflow
    version       text NOT NULL,
    agent         text NOT NULL,
    server        text NOT NULL,
    turn          text NOT NULL,
    action_sha256 text NOT NULL,            -- empty: the arguments fit what is asked of them
    args          bytea NOT NULL,           -- JSON object: canonical JSON by name
    predicates    bytea NOT NULL,           -- JSON array
    uses_given    bigint,                   -- NULL: any number
    span          bigint,                   -- microseconds
    reason        bytea NOT NULL,
    expires_at    bigint,
    uses          bigint,                   -- left
    used          bigint NOT NULL,
    revoked_at    bigint,
    revoked_by    text NOT NULL,
    revoked_why   bytea NOT NULL,
    PRIMARY KEY (tenant, sticky_id)
);

CREATE INDEX sticky_listed ON sticky (tenant, made_at, sticky_id);
CREATE INDEX sticky_of_run ON sticky (tenant, effect, run_id) WHERE revoked_at IS NULL AND reach <> 'workflow';
CREATE INDEX sticky_of_workflow ON sticky (tenant, effect, workflow) WHERE revoked_at IS NULL AND reach = 'workflow';

CREATE TABLE request (
    tenant      text COLLATE "C" NOT NULL,
    request_id  text COLLATE "C" NOT NULL,  -- a hash: the key is kept nowhere
    fingerprint text NOT NULL,
    token       text NOT NULL,
    state       text COLLATE "C" NOT NULL,  -- running, done or freed; the rest follows from the time
    started_at  bigint NOT NULL,
    held_until  bigint NOT NULL,
    keep        bigint NOT NULL,            -- microseconds
    expires_at  bigint,
    resolved_by text NOT NULL,
    reason      text NOT NULL,
    resolved_at bigint,
    note        bytea NOT NULL,
    answer      bytea NOT NULL,
    PRIMARY KEY (tenant, request_id)
);

CREATE INDEX request_state ON request (tenant, state, started_at, request_id);
CREATE INDEX request_expiry ON request (tenant, expires_at, request_id) WHERE expires_at IS NOT NULL;
