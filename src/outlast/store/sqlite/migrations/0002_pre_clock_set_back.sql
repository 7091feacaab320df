-- When `due` was set, by the wall clock. A time that has not come yet means that the clock was set back since: nobody should
-- wait then until it has come so far again.

ALTER TABLE run ADD COLUMN due_set_at INTEGER NOT NULL DEFAULT 0;

CREATE INDEX run_due_set ON run (workflow, due_set_at) WHERE due IS NOT NULL;
