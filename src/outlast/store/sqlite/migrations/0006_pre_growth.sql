-- The generation that the last start began. Later ones are roll-overs, and share its inbox: `message.generation` holds it. 0: the
-- present generation is that one.

ALTER TABLE run ADD COLUMN incarnation INTEGER NOT NULL DEFAULT 0;
