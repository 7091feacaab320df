-- The last value that a run has published under a key, found without reading its journal. Other entries are not in it.

CREATE INDEX entry_published ON entry (tenant, run_id, generation, name, seq) WHERE kind = 'published';
