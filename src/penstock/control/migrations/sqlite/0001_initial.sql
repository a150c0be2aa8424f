-- Metadata, offsets and groups. JSON columns hold lists and maps that are read whole.

CREATE TABLE facts (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE brokers (
    broker_id   INTEGER PRIMARY KEY,
    host        TEXT,
    port        INTEGER,
    rack        TEXT,
    incarnation BLOB,
    epoch       INTEGER NOT NULL,
    registered  INTEGER NOT NULL CHECK (registered IN (0, 1))
);

CREATE TABLE topics (
    topic_id BLOB PRIMARY KEY CHECK (length(topic_id) = 16),
    name     TEXT NOT NULL UNIQUE,
    configs  TEXT NOT NULL,
    internal INTEGER NOT NULL CHECK (internal IN (0, 1))
) WITHOUT ROWID;

CREATE TABLE partitions (
    topic_id     BLOB NOT NULL REFERENCES topics (topic_id) ON DELETE CASCADE,
    number       INTEGER NOT NULL CHECK (number >= 0),
    leader       INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL CHECK (leader_epoch >= 0),
    replicas     TEXT NOT NULL,
    isr          TEXT NOT NULL,
    PRIMARY KEY (topic_id, number)
) WITHOUT ROWID;

CREATE TABLE broker_configs (
    broker  TEXT PRIMARY KEY,
    configs TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE group_offsets (
    group_id            TEXT NOT NULL,
    topic               TEXT NOT NULL,
    number              INTEGER NOT NULL,
    topic_id            BLOB NOT NULL,
    committed_offset    INTEGER NOT NULL,
    leader_epoch        INTEGER NOT NULL,
    metadata            TEXT NOT NULL,
    commit_timestamp_ms INTEGER NOT NULL,
    expire_timestamp_ms INTEGER,
    PRIMARY KEY (group_id, topic, number)
) WITHOUT ROWID;

CREATE INDEX group_offsets_by_topic ON group_offsets (topic);
CREATE INDEX group_offsets_by_expiry ON group_offsets (expire_timestamp_ms)
    WHERE expire_timestamp_ms IS NOT NULL;

CREATE TABLE group_records (
    group_id      TEXT PRIMARY KEY,
    version       INTEGER NOT NULL,
    generation    INTEGER NOT NULL,
    protocol_type TEXT NOT NULL,
    protocol      TEXT NOT NULL,
    state         BLOB NOT NULL
) WITHOUT ROWID;
