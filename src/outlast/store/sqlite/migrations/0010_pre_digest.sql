-- Of a message under an id of its sender's own: what tells it from another message under the same id. Empty where it is not compared.

ALTER TABLE message ADD COLUMN digest TEXT NOT NULL DEFAULT '';
