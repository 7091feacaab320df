-- Of an open operation: the details of the last beat that was kept, whether its outcome comes from outside, and whether all of its
-- failed attempts are known to have changed nothing.

ALTER TABLE operation ADD COLUMN progress BLOB NOT NULL DEFAULT x'';
ALTER TABLE operation ADD COLUMN awaits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE operation ADD COLUMN unapplied INTEGER NOT NULL DEFAULT 0;
