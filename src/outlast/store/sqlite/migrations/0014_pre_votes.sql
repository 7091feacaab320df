-- How a request is decided, and who has said yes to it. Empty terms: one yes, as before. Of a decision in the inbox: what came of it.

ALTER TABLE approval ADD COLUMN terms TEXT NOT NULL DEFAULT '';        -- JSON object
ALTER TABLE approval ADD COLUMN kind TEXT NOT NULL DEFAULT 'approval';
ALTER TABLE approval ADD COLUMN persons TEXT NOT NULL DEFAULT '[[],[]]'; -- JSON: who started the run; who may not say yes
ALTER TABLE approval ADD COLUMN votes TEXT NOT NULL DEFAULT '[]';      -- JSON array of {by, at, behalf}

-- What waits is found in the order in which it is listed: a tenant's, and one run's; and all that a tenant was ever asked, page by page.
DROP INDEX approval_pending;
CREATE INDEX approval_pending ON approval (tenant, requested_at, run_id, approval_id) WHERE state = 'pending';
CREATE INDEX approval_of_run ON approval (tenant, run_id, requested_at, approval_id) WHERE state = 'pending';
CREATE INDEX approval_listed ON approval (tenant, requested_at, run_id, approval_id);

ALTER TABLE message ADD COLUMN result TEXT NOT NULL DEFAULT '';
