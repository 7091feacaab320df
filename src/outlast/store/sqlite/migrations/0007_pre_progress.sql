-- Of an open operation: the details of the last beat that was kept, and whether its outcome comes from outside.

ALTER TABLE operation ADD COLUMN progress BLOB NOT NULL DEFAULT x'';
ALTER TABLE operation ADD COLUMN awaits INTEGER NOT NULL DEFAULT 0;
