-- The builds that are not offered a run, as part of the order in which runs come due: runs that wait for another build are then in a
-- place of their own, and a look of theirs does not read them. Mail offers a run to every build.

ALTER TABLE run ADD COLUMN unfit TEXT GENERATED ALWAYS AS (CASE calls WHEN 1 THEN '' ELSE unfit_builds END) VIRTUAL;

DROP INDEX run_due;
CREATE INDEX run_due ON run (workflow, unfit, due) WHERE due IS NOT NULL;
DROP INDEX run_due_set;
CREATE INDEX run_due_set ON run (workflow, unfit, due_set_at) WHERE due IS NOT NULL;
