-- Diskless topics: objects, and the index of the batches in them, a row per extent. Ids of objects
-- and keys never come again; extents do not reference objects by constraint, as each object counts
-- the extents that refer to it.

CREATE TABLE diskless_objects (
    object_id  INTEGER PRIMARY KEY,
    key        TEXT NOT NULL UNIQUE,
    state      TEXT NOT NULL CHECK (state IN ('pending', 'committed', 'deleting')),
    kind       TEXT NOT NULL CHECK (kind IN ('wal', 'segment')),
    size_bytes INTEGER NOT NULL CHECK (size_bytes >= 0),
    extents    INTEGER NOT NULL CHECK (extents >= 0),
    changed_ms INTEGER NOT NULL
);

CREATE INDEX diskless_objects_pending ON diskless_objects (changed_ms)
    WHERE state = 'pending';
CREATE INDEX diskless_objects_unreferenced ON diskless_objects (changed_ms)
    WHERE state = 'committed' AND extents = 0;
CREATE INDEX diskless_objects_deleting ON diskless_objects (object_id)
    WHERE state = 'deleting';

-- First answers of commits, for those that are repeated.
CREATE TABLE diskless_answers (
    object_id    INTEGER PRIMARY KEY,
    committed_ms INTEGER NOT NULL,
    answer       BLOB NOT NULL
);

CREATE INDEX diskless_answers_by_time ON diskless_answers (committed_ms);

-- Partitions come with their first commit; those of deleted topics are dropped piece by piece.
CREATE TABLE diskless_partitions (
    partition_id     INTEGER PRIMARY KEY,
    topic_id         BLOB NOT NULL CHECK (length(topic_id) = 16),
    number           INTEGER NOT NULL CHECK (number >= 0),
    log_start_offset INTEGER NOT NULL CHECK (log_start_offset BETWEEN 0 AND high_watermark),
    high_watermark   INTEGER NOT NULL,
    size_bytes       INTEGER NOT NULL CHECK (size_bytes >= 0),
    wal_extents      INTEGER NOT NULL CHECK (wal_extents >= 0),
    wal_bytes        INTEGER NOT NULL CHECK (wal_bytes >= 0),
    UNIQUE (topic_id, number)
);

CREATE TABLE diskless_extents (
    partition_id   INTEGER NOT NULL,
    base_offset    INTEGER NOT NULL,
    next_offset    INTEGER NOT NULL CHECK (next_offset > base_offset),
    object_id      INTEGER NOT NULL,
    byte_offset    INTEGER NOT NULL,
    size_bytes     INTEGER NOT NULL,
    max_timestamp  INTEGER NOT NULL,
    append_time_ms INTEGER NOT NULL,
    layout         BLOB NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
) WITHOUT ROWID;

-- Batches are those that the producer may repeat, as `batch_index/formats.py` packs them.
CREATE TABLE diskless_producers (
    partition_id INTEGER NOT NULL,
    producer_id  INTEGER NOT NULL,
    epoch        INTEGER NOT NULL,
    seen_ms      INTEGER NOT NULL,
    batches      BLOB NOT NULL,
    PRIMARY KEY (partition_id, producer_id)
) WITHOUT ROWID;

CREATE INDEX diskless_producers_by_time ON diskless_producers (seen_ms);
