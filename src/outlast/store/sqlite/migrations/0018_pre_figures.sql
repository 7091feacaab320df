-- For the figures of a store: runs whose owners died are counted without a look at others; closed ones are not in it. And what a worker
-- says of itself, now and then, for whoever looks.

CREATE INDEX run_lapsed ON run (tenant) WHERE lapses > 0 AND open = 1;

ALTER TABLE worker ADD COLUMN report BLOB NOT NULL DEFAULT x'';
