-- Requests that came with an idempotency key. `request_id` is a hash: the key is kept nowhere. `keep` is in microseconds. A record that has
-- not ended has no `expires_at`. Answers may be long: they come last, behind all that is judged, and not into the tree of the keys.

CREATE TABLE request (
    tenant      TEXT NOT NULL,
    request_id  TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    token       TEXT NOT NULL,
    state       TEXT NOT NULL,               -- running, done or freed; the rest follows from the time
    started_at  INTEGER NOT NULL,
    held_until  INTEGER NOT NULL,
    keep        INTEGER NOT NULL,
    expires_at  INTEGER,
    resolved_by TEXT NOT NULL DEFAULT '',
    reason      TEXT NOT NULL DEFAULT '',
    resolved_at INTEGER,
    note        BLOB NOT NULL DEFAULT x'',
    answer      BLOB NOT NULL DEFAULT x'',
    PRIMARY KEY (tenant, request_id)
) STRICT;

CREATE INDEX request_state ON request (tenant, state, started_at, request_id);
CREATE INDEX request_expiry ON request (tenant, expires_at, request_id) WHERE expires_at IS NOT NULL;
