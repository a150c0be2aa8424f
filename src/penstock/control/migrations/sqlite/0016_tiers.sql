-- Tiered storage: where each partition begins and up to where it lies in the archive, and its
-- segments there. Objects are rows of diskless_objects: up to four from object_id on.

CREATE TABLE tiered_partitions (
    topic_id         BLOB    NOT NULL CHECK (length(topic_id) = 16),
    number           INTEGER NOT NULL CHECK (number >= 0),
    log_start_offset INTEGER NOT NULL CHECK (log_start_offset >= 0),
    tiered_offset    INTEGER NOT NULL CHECK (tiered_offset >= 0),
    size_bytes       INTEGER NOT NULL CHECK (size_bytes >= 0),
    segments         INTEGER NOT NULL CHECK (segments >= 0),
    PRIMARY KEY (topic_id, number)
) WITHOUT ROWID;

CREATE TABLE tiered_segments (
    topic_id         BLOB    NOT NULL,
    number           INTEGER NOT NULL,
    base_offset      INTEGER NOT NULL,
    next_offset      INTEGER NOT NULL CHECK (next_offset > base_offset),
    leader_epoch     INTEGER NOT NULL,
    max_timestamp    INTEGER NOT NULL,
    object_id        INTEGER NOT NULL UNIQUE,
    stem             TEXT    NOT NULL,
    size_bytes       INTEGER NOT NULL CHECK (size_bytes > 0),
    index_bytes      INTEGER NOT NULL,
    time_index_bytes INTEGER NOT NULL,
    aborted_bytes    INTEGER NOT NULL,
    checksum         INTEGER NOT NULL,
    PRIMARY KEY (topic_id, number, base_offset)
) WITHOUT ROWID;
