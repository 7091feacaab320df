-- When the last attempt of an effect was announced, and whether somebody must say what became of it. Those of which that is so are found
-- without a look at any other run.

ALTER TABLE operation ADD COLUMN begun_at INTEGER;
ALTER TABLE operation ADD COLUMN in_doubt INTEGER NOT NULL DEFAULT 0;

CREATE INDEX operation_doubt ON operation (tenant, run_id, operation, name) WHERE in_doubt = 1;
