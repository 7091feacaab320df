-- Of a step that was handed out: how often whoever works outside has said that it is alive, when it was last heard of, and for how many
-- microseconds it may say nothing.

ALTER TABLE operation ADD COLUMN beats INTEGER NOT NULL DEFAULT 0;
ALTER TABLE operation ADD COLUMN heard_at INTEGER;
ALTER TABLE operation ADD COLUMN silence INTEGER;
