-- How a request is decided, and who has said yes to it. Empty terms: one yes, as before. Of a decision in the inbox: what came of it.

ALTER TABLE approval ADD COLUMN terms TEXT NOT NULL DEFAULT '';        -- JSON object
ALTER TABLE approval ADD COLUMN kind TEXT NOT NULL DEFAULT 'approval';
ALTER TABLE approval ADD COLUMN persons TEXT NOT NULL DEFAULT '[[],[]]'; -- JSON: who started the run; who may not say yes
ALTER TABLE approval ADD COLUMN votes TEXT NOT NULL DEFAULT '[]';      -- JSON array of {by, at, behalf}

ALTER TABLE message ADD COLUMN result TEXT NOT NULL DEFAULT '';
