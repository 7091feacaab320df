-- Answers to updates, each in the row of its message, and the way to one by the message's id alone.

ALTER TABLE message ADD COLUMN answer BLOB;

CREATE INDEX message_update ON message (tenant, run_id, message_id, generation) WHERE kind = 'update';

-- A run whose end is to be written next takes no more signals and updates.
ALTER TABLE run ADD COLUMN ending INTEGER NOT NULL DEFAULT 0;
