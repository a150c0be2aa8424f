-- The newest commit of each query that writes to the log. Lanes are JSON, compressed by zlib, as
-- they are read whole; the manifest is opaque here.

CREATE TABLE sink_commits (
    query_id   TEXT PRIMARY KEY,
    version    INTEGER NOT NULL,
    owner      TEXT,
    batch_id   INTEGER NOT NULL CHECK (batch_id >= 0),
    state      TEXT NOT NULL CHECK (state IN ('intent', 'done')),
    updated_ms INTEGER NOT NULL,
    lanes      BLOB NOT NULL,
    manifest   BLOB NOT NULL
);
