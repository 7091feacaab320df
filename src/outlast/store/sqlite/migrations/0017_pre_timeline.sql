-- How a file that was put back is known, and what may go on then. `mark` grows with each commit; beside the database stands the highest
-- one that was seen. A run that is older than a restore may have done what nobody remembers.

ALTER TABLE store ADD COLUMN mark INTEGER NOT NULL DEFAULT 0;
ALTER TABLE store ADD COLUMN backed_up_at INTEGER;             -- only in a backup that was not put to use yet

ALTER TABLE run ADD COLUMN released INTEGER NOT NULL DEFAULT 0; -- a paused worker may move it
ALTER TABLE run ADD COLUMN restored_at INTEGER;
ALTER TABLE run ADD COLUMN restored_until INTEGER;             -- nothing is forgotten of before

ALTER TABLE worker ADD COLUMN paused INTEGER NOT NULL DEFAULT 0;

-- A look of a paused worker reads none of the runs that are not released.
CREATE INDEX run_released_due ON run (workflow, unfit, due) WHERE due IS NOT NULL AND released = 1;
CREATE INDEX run_released_due_set ON run (workflow, unfit, due_set_at) WHERE due IS NOT NULL AND released = 1;
