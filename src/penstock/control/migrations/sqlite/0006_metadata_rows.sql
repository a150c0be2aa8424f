-- The forms of PostgreSQL: one row that says which image of the metadata it is, counters that are
-- numbers, topics with the stamp of their last change, and metadata of offsets as bytes.

CREATE TABLE image_version (
    only_row   INTEGER PRIMARY KEY CHECK (only_row = 1),
    cluster_id TEXT    NOT NULL,
    version    INTEGER NOT NULL,
    membership INTEGER NOT NULL,
    stamp      BLOB    NOT NULL CHECK (length(stamp) = 16)
);
INSERT INTO image_version SELECT 1, value,
    coalesce((SELECT CAST(value AS INTEGER) FROM facts WHERE name = 'image_version'), 0),
    coalesce((SELECT CAST(value AS INTEGER) FROM facts WHERE name = 'membership'), 0),
    zeroblob(16)
    FROM facts WHERE name = 'cluster_id';

CREATE TABLE counters (
    name  TEXT    PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counters VALUES
    ('next_producer_id', 0), ('highest_group_version', 0), ('highest_sink_version', 0),
    ('highest_object_id', 0);
UPDATE counters SET value = (SELECT CAST(f.value AS INTEGER) FROM facts f WHERE f.name = counters.name)
    WHERE name IN (SELECT name FROM facts);
DROP TABLE facts;

ALTER TABLE topics ADD COLUMN stamp BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';

CREATE TABLE group_offsets_of_bytes (
    group_id            TEXT    NOT NULL,
    topic               TEXT    NOT NULL,
    number              INTEGER NOT NULL,
    topic_id            BLOB    NOT NULL,
    committed_offset    INTEGER NOT NULL,
    leader_epoch        INTEGER NOT NULL,
    metadata            BLOB    NOT NULL,
    commit_timestamp_ms INTEGER NOT NULL,
    expire_timestamp_ms INTEGER,
    PRIMARY KEY (group_id, topic, number)
) WITHOUT ROWID;
INSERT INTO group_offsets_of_bytes SELECT group_id, topic, number, topic_id, committed_offset,
    leader_epoch, CAST(metadata AS BLOB), commit_timestamp_ms, expire_timestamp_ms FROM group_offsets;
DROP TABLE group_offsets;
ALTER TABLE group_offsets_of_bytes RENAME TO group_offsets;

CREATE INDEX group_offsets_by_topic ON group_offsets (topic);
CREATE INDEX group_offsets_by_expiry ON group_offsets (expire_timestamp_ms)
    WHERE expire_timestamp_ms IS NOT NULL;
