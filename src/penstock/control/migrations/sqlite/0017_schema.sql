-- The schema of release 0.1. Lists and maps are JSON.

-- One row: the newest image of the metadata. `entity_stamp` is the stamp of the image that changed
-- `entity_configs` last; null before the first change.
CREATE TABLE image_version (
    only_row     INTEGER PRIMARY KEY CHECK (only_row = 1),
    cluster_id   TEXT    NOT NULL,
    version      INTEGER NOT NULL,
    membership   INTEGER NOT NULL,
    stamp        BLOB    NOT NULL CHECK (length(stamp) = 16),
    entity_stamp BLOB
);

CREATE TABLE counters (
    name  TEXT    PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counters VALUES
    ('next_producer_id', 0), ('highest_sink_version', 0), ('highest_object_id', 0);

-- `endpoints` is a list of [listener, host, port].
CREATE TABLE brokers (
    broker_id   INTEGER PRIMARY KEY,
    host        TEXT,
    port        INTEGER,
    rack        TEXT,
    incarnation BLOB,
    epoch       INTEGER NOT NULL,
    registered  INTEGER NOT NULL CHECK (registered IN (0, 1)),
    endpoints   TEXT NOT NULL DEFAULT '[]',
    roles       TEXT NOT NULL DEFAULT '["ingestion", "persistence"]'
);

-- `stamp` is the stamp of the image that changed the topic last.
CREATE TABLE topics (
    topic_id BLOB PRIMARY KEY CHECK (length(topic_id) = 16),
    name     TEXT NOT NULL UNIQUE,
    configs  TEXT NOT NULL,
    internal INTEGER NOT NULL CHECK (internal IN (0, 1)),
    stamp    BLOB NOT NULL DEFAULT x'00000000000000000000000000000000'
) WITHOUT ROWID;

-- `target` lists the ordered replicas; `move` is the version of the image that ordered them, or 0.
CREATE TABLE partitions (
    topic_id     BLOB NOT NULL REFERENCES topics (topic_id) ON DELETE CASCADE,
    number       INTEGER NOT NULL CHECK (number >= 0),
    leader       INTEGER NOT NULL,
    leader_epoch INTEGER NOT NULL CHECK (leader_epoch >= 0),
    replicas     TEXT NOT NULL,
    isr          TEXT NOT NULL,
    target       TEXT NOT NULL DEFAULT '[]',
    move         INTEGER NOT NULL DEFAULT 0 CHECK (move >= 0),
    PRIMARY KEY (topic_id, number)
) WITHOUT ROWID;

CREATE TABLE broker_configs (
    broker  TEXT PRIMARY KEY,
    configs TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE entity_configs (
    kind    TEXT NOT NULL,
    name    TEXT NOT NULL,
    configs TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- Replicated partitions: the highest reserved epoch and its claimant, and the opened epochs.
CREATE TABLE replicated_partitions (
    topic_id    BLOB    NOT NULL,
    number      INTEGER NOT NULL CHECK (number >= 0),
    reserved    INTEGER NOT NULL CHECK (reserved >= 0),
    claimant    INTEGER NOT NULL,
    incarnation BLOB,
    PRIMARY KEY (topic_id, number)
) WITHOUT ROWID;

CREATE TABLE partition_epochs (
    topic_id     BLOB    NOT NULL,
    number       INTEGER NOT NULL CHECK (number >= 0),
    epoch        INTEGER NOT NULL CHECK (epoch >= 0),
    start_offset INTEGER NOT NULL CHECK (start_offset >= 0),
    end_offset   INTEGER CHECK (end_offset >= start_offset),
    replicas     TEXT    NOT NULL,
    ack_quorum   INTEGER NOT NULL,
    leader       INTEGER NOT NULL,
    incarnation  BLOB,
    PRIMARY KEY (topic_id, number, epoch),
    CONSTRAINT quorum_of_replicas
        CHECK (ack_quorum >= 1 AND ack_quorum <= json_array_length(replicas)),
    CONSTRAINT quorums_share_a_replica CHECK (2 * ack_quorum > json_array_length(replicas))
) WITHOUT ROWID;

CREATE UNIQUE INDEX partition_epochs_open ON partition_epochs (topic_id, number)
    WHERE end_offset IS NULL;

-- Losses of unclean elections: the sealed epoch and its first lost offset, the electing broker, and
-- the replicas that were missing.
CREATE TABLE partition_losses (
    topic_id    BLOB    NOT NULL,
    number      INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    sealed      INTEGER NOT NULL,
    from_offset INTEGER NOT NULL,
    broker      INTEGER NOT NULL,
    missing     TEXT    NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (topic_id, number, epoch)
) WITHOUT ROWID;

CREATE TABLE group_offsets (
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

CREATE INDEX group_offsets_by_topic ON group_offsets (topic);
CREATE INDEX group_offsets_by_expiry ON group_offsets (expire_timestamp_ms)
    WHERE expire_timestamp_ms IS NOT NULL;

-- Offsets of open transactions. `ordinal` counts those of a partition; an offset is overtaken by
-- later commits outside of transactions.
CREATE TABLE pending_offsets (
    group_id            TEXT    NOT NULL,
    topic               TEXT    NOT NULL,
    number              INTEGER NOT NULL,
    transactional_id    BLOB    NOT NULL,
    topic_id            BLOB    NOT NULL,
    committed_offset    INTEGER NOT NULL,
    leader_epoch        INTEGER NOT NULL,
    metadata            BLOB    NOT NULL,
    commit_timestamp_ms INTEGER NOT NULL,
    ordinal             INTEGER NOT NULL,
    overtaken           INTEGER NOT NULL,
    PRIMARY KEY (group_id, topic, number, transactional_id)
) WITHOUT ROWID;

CREATE INDEX pending_offsets_by_transaction ON pending_offsets (transactional_id);
CREATE INDEX pending_offsets_by_topic ON pending_offsets (topic);

-- Records of coordinators: a row of each key, whose member is empty, and one of each member.
CREATE TABLE coordination_records (
    kind    TEXT NOT NULL,
    key     BLOB NOT NULL,
    member  BLOB NOT NULL,
    version INTEGER NOT NULL,
    value   BLOB NOT NULL,
    PRIMARY KEY (kind, key, member)
) WITHOUT ROWID;

-- The newest commit of each query that writes to the log. `lanes` is JSON, compressed by zlib.
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

-- Diskless topics: objects, and the index of their batches, a row per extent. Ids of objects and
-- keys are never reused. Extents do not reference objects by constraint: each object counts the
-- extents that refer to it.
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

-- First answers of commits, for repeated ones.
CREATE TABLE diskless_answers (
    object_id    INTEGER PRIMARY KEY,
    committed_ms INTEGER NOT NULL,
    answer       BLOB NOT NULL
);

CREATE INDEX diskless_answers_by_time ON diskless_answers (committed_ms);

-- The first commit to a partition adds its row; rows of deleted topics are dropped in steps.
-- `open_offset` is the first offset of the first open transaction, `aborted_offset` the marker of
-- the last aborted one; both are -1 for none. No key has two records below `clean_offset`.
CREATE TABLE diskless_partitions (
    partition_id     INTEGER PRIMARY KEY,
    topic_id         BLOB NOT NULL CHECK (length(topic_id) = 16),
    number           INTEGER NOT NULL CHECK (number >= 0),
    log_start_offset INTEGER NOT NULL CHECK (log_start_offset BETWEEN 0 AND high_watermark),
    high_watermark   INTEGER NOT NULL,
    size_bytes       INTEGER NOT NULL CHECK (size_bytes >= 0),
    wal_extents      INTEGER NOT NULL CHECK (wal_extents >= 0),
    wal_bytes        INTEGER NOT NULL CHECK (wal_bytes >= 0),
    open_offset      INTEGER NOT NULL DEFAULT -1,
    aborted_offset   INTEGER NOT NULL DEFAULT -1,
    clean_offset     INTEGER NOT NULL DEFAULT 0,
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

-- `batches` are those that the producer may repeat, packed by `values/diskless.py`.
CREATE TABLE diskless_producers (
    partition_id      INTEGER NOT NULL,
    producer_id       INTEGER NOT NULL,
    epoch             INTEGER NOT NULL,
    seen_ms           INTEGER NOT NULL,
    batches           BLOB NOT NULL,
    coordinator_epoch INTEGER NOT NULL DEFAULT -1,
    txn_first_offset  INTEGER NOT NULL DEFAULT -1,
    guard_offset      INTEGER NOT NULL DEFAULT -1,
    PRIMARY KEY (partition_id, producer_id)
) WITHOUT ROWID;

CREATE INDEX diskless_producers_by_time ON diskless_producers (seen_ms);
CREATE INDEX diskless_producers_open ON diskless_producers (partition_id, txn_first_offset)
    WHERE txn_first_offset >= 0;

CREATE TABLE diskless_aborted (
    partition_id       INTEGER NOT NULL,
    last_offset        INTEGER NOT NULL,
    producer_id        INTEGER NOT NULL,
    first_offset       INTEGER NOT NULL CHECK (first_offset < last_offset),
    last_stable_offset INTEGER NOT NULL,
    PRIMARY KEY (partition_id, last_offset)
) WITHOUT ROWID;

-- Requests that move a topic's records, and the participants' progress. `partitions` is packed by
-- `values/diskless.py`.
CREATE TABLE diskless_switches (
    topic_id    BLOB PRIMARY KEY,
    switch_id   BLOB NOT NULL,
    broker_id   INTEGER NOT NULL,
    incarnation BLOB NOT NULL
) WITHOUT ROWID;

CREATE TABLE diskless_switch_shares (
    topic_id    BLOB NOT NULL,
    broker_id   INTEGER NOT NULL,
    incarnation BLOB NOT NULL,
    state       TEXT NOT NULL
        CHECK (state IN ('copying', 'ready', 'fenced', 'failed')),
    reason      TEXT NOT NULL,
    partitions  BLOB NOT NULL,
    PRIMARY KEY (topic_id, broker_id)
) WITHOUT ROWID;

-- The adopted object store: its random id, and its location at adoption. One row, never changed.
CREATE TABLE diskless_store (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    store_id BLOB NOT NULL CHECK (length(store_id) = 16),
    place    TEXT NOT NULL
);

-- Tiered storage: the archived segments of a partition. Up to four rows of diskless_objects from
-- `object_id` on are a segment's objects.
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
