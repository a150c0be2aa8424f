-- The schema of release 0.1. Lists and maps are JSON. Text is compared byte by byte, as in SQLite.
--
-- Locks are taken in this order: metadata, a topic's migration, a commit's own PENDING object,
-- partitions by id, objects that extents refer to by id.

-- The database's time in milliseconds, by which ages are measured. It is stable, so that statements
-- with it use indexes.
CREATE FUNCTION penstock_now_ms() RETURNS bigint LANGUAGE sql STABLE AS
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';

-- One row: the newest image of the metadata, locked by every change. Images of equal stamps are
-- equal. `entity_stamp` is the stamp of the image that changed `entity_configs` last; null before
-- the first change.
CREATE TABLE image_version (
    only_row     boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id   text   NOT NULL,
    version      bigint NOT NULL,
    membership   bigint NOT NULL,
    stamp        uuid   NOT NULL,
    entity_stamp uuid
);

-- The first statement of every transaction that stores offsets, records or objects: metadata cannot
-- change before the transaction ends. An expected cluster epoch must be the current one. It is a
-- function, so that its query reads what was committed while it waited for the lock.
CREATE FUNCTION penstock_fence(expected bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    found bigint;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1346719315, 2);
    IF expected IS NOT NULL THEN
        SELECT membership INTO found FROM image_version;
        IF found <> expected THEN
            RAISE EXCEPTION 'the membership is %, not %', found, expected
                USING ERRCODE = 'PK001', DETAIL = expected || ' ' || found;
        END IF;
    END IF;
END
$$;

CREATE TABLE counters (
    name  text PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO counters VALUES ('next_producer_id', 0), ('highest_object_id', 0);

-- `endpoints` is a list of [listener, host, port].
CREATE TABLE brokers (
    broker_id   integer PRIMARY KEY,
    host        text,
    port        integer,
    rack        text,
    incarnation uuid,
    epoch       bigint  NOT NULL,
    registered  boolean NOT NULL,
    renewed_ms  bigint  NOT NULL,
    endpoints   text    NOT NULL DEFAULT '[]',
    roles       text    NOT NULL DEFAULT '["ingestion", "persistence"]'
) WITH (fillfactor = 50);

-- `stamp` is the stamp of the image that changed the topic last.
CREATE TABLE topics (
    topic_id uuid PRIMARY KEY,
    name     text COLLATE "C" NOT NULL UNIQUE,
    configs  text    NOT NULL,
    internal boolean NOT NULL,
    stamp    uuid    NOT NULL
);

-- `target` lists the ordered replicas; `move` is the version of the image that ordered them, or 0.
CREATE TABLE partitions (
    topic_id     uuid    NOT NULL,
    number       integer NOT NULL CHECK (number >= 0),
    leader       integer NOT NULL,
    leader_epoch integer NOT NULL CHECK (leader_epoch >= 0),
    replicas     text    NOT NULL,
    isr          text    NOT NULL,
    target       text    NOT NULL DEFAULT '[]',
    move         bigint  NOT NULL DEFAULT 0 CHECK (move >= 0),
    PRIMARY KEY (topic_id, number)
);

CREATE TABLE broker_configs (
    broker  text PRIMARY KEY,
    configs text NOT NULL
);

CREATE TABLE entity_configs (
    kind    text NOT NULL,
    name    text NOT NULL,
    configs text NOT NULL,
    PRIMARY KEY (kind, name)
);

-- Replicated partitions: the highest reserved epoch and its claimant, and the opened epochs. Rows
-- of `replicated_partitions` are locked in the order of their keys, after metadata.
CREATE TABLE replicated_partitions (
    topic_id    uuid    NOT NULL,
    number      integer NOT NULL CHECK (number >= 0),
    reserved    integer NOT NULL CHECK (reserved >= 0),
    claimant    integer NOT NULL,
    incarnation uuid,
    PRIMARY KEY (topic_id, number)
) WITH (fillfactor = 80);

CREATE TABLE partition_epochs (
    topic_id     uuid    NOT NULL,
    number       integer NOT NULL CHECK (number >= 0),
    epoch        integer NOT NULL CHECK (epoch >= 0),
    start_offset bigint  NOT NULL CHECK (start_offset >= 0),
    end_offset   bigint  CHECK (end_offset >= start_offset),
    replicas     text    NOT NULL,
    ack_quorum   integer NOT NULL,
    leader       integer NOT NULL,
    incarnation  uuid,
    PRIMARY KEY (topic_id, number, epoch),
    CONSTRAINT quorum_of_replicas
        CHECK (ack_quorum >= 1 AND ack_quorum <= json_array_length(replicas::json)),
    CONSTRAINT quorums_share_a_replica CHECK (2 * ack_quorum > json_array_length(replicas::json))
);

CREATE UNIQUE INDEX partition_epochs_open ON partition_epochs (topic_id, number)
    WHERE end_offset IS NULL;

-- Losses of unclean elections: the sealed epoch and its first lost offset, the electing broker, and
-- the replicas that were missing.
CREATE TABLE partition_losses (
    topic_id    uuid    NOT NULL,
    number      integer NOT NULL,
    epoch       integer NOT NULL,
    sealed      integer NOT NULL,
    from_offset bigint  NOT NULL,
    broker      integer NOT NULL,
    missing     text    NOT NULL,
    at_ms       bigint  NOT NULL,
    PRIMARY KEY (topic_id, number, epoch)
);

CREATE TABLE group_offsets (
    group_id            text COLLATE "C" NOT NULL,
    topic               text COLLATE "C" NOT NULL,
    number              integer NOT NULL,
    topic_id            uuid    NOT NULL,
    committed_offset    bigint  NOT NULL,
    leader_epoch        integer NOT NULL,
    metadata            bytea   NOT NULL,
    commit_timestamp_ms bigint  NOT NULL,
    expire_timestamp_ms bigint,
    PRIMARY KEY (group_id, topic, number)
) WITH (fillfactor = 80);

CREATE INDEX group_offsets_by_topic ON group_offsets (topic);
CREATE INDEX group_offsets_by_expiry ON group_offsets (expire_timestamp_ms)
    WHERE expire_timestamp_ms IS NOT NULL;

-- Offsets of open transactions. `ordinal` counts those of a partition; an offset is overtaken by
-- later commits outside of transactions.
CREATE TABLE pending_offsets (
    group_id            text COLLATE "C" NOT NULL,
    topic               text COLLATE "C" NOT NULL,
    number              integer NOT NULL,
    transactional_id    bytea   NOT NULL,
    topic_id            uuid    NOT NULL,
    committed_offset    bigint  NOT NULL,
    leader_epoch        integer NOT NULL,
    metadata            bytea   NOT NULL,
    commit_timestamp_ms bigint  NOT NULL,
    ordinal             bigint  NOT NULL,
    overtaken           boolean NOT NULL,
    PRIMARY KEY (group_id, topic, number, transactional_id)
) WITH (fillfactor = 80);

CREATE INDEX pending_offsets_by_transaction ON pending_offsets (transactional_id);
CREATE INDEX pending_offsets_by_topic ON pending_offsets (topic);

-- Records of coordinators: a row of each key, whose member is empty, and one of each member.
CREATE TABLE coordination_records (
    kind    text COLLATE "C" NOT NULL,
    key     bytea  NOT NULL,
    member  bytea  NOT NULL,
    version bigint NOT NULL,
    value   bytea  NOT NULL,
    PRIMARY KEY (kind, key, member)
) WITH (fillfactor = 80);

-- The newest commit of each query that writes to the log. `lanes` is JSON, compressed by zlib.
CREATE SEQUENCE sink_versions;

CREATE TABLE sink_commits (
    query_id   text COLLATE "C" PRIMARY KEY,
    version    bigint NOT NULL,
    owner      text,
    batch_id   bigint NOT NULL CHECK (batch_id >= 0),
    state      text   NOT NULL CHECK (state IN ('intent', 'done')),
    updated_ms bigint NOT NULL,
    lanes      bytea  NOT NULL,
    manifest   bytea  NOT NULL
);

-- Diskless topics: objects, and the index of their batches, a row per extent. Ids of objects and
-- keys are never reused. Extents do not reference objects by constraint: each object counts the
-- extents that refer to it.
CREATE TABLE diskless_objects (
    object_id  bigint PRIMARY KEY,
    key        text COLLATE "C" NOT NULL UNIQUE,
    state      text   NOT NULL CHECK (state IN ('pending', 'committed', 'deleting')),
    kind       text   NOT NULL CHECK (kind IN ('wal', 'segment')),
    size_bytes bigint NOT NULL CHECK (size_bytes >= 0),
    extents    bigint NOT NULL CHECK (extents >= 0),
    changed_ms bigint NOT NULL
) WITH (fillfactor = 80);

CREATE INDEX diskless_objects_pending ON diskless_objects (changed_ms)
    WHERE state = 'pending';
CREATE INDEX diskless_objects_unreferenced ON diskless_objects (changed_ms)
    WHERE state = 'committed' AND extents = 0;
CREATE INDEX diskless_objects_deleting ON diskless_objects (object_id)
    WHERE state = 'deleting';

-- First answers of commits, for repeated ones.
CREATE TABLE diskless_answers (
    object_id    bigint PRIMARY KEY,
    committed_ms bigint NOT NULL,
    answer       bytea  NOT NULL
);

CREATE INDEX diskless_answers_by_time ON diskless_answers (committed_ms);

-- The first commit to a partition adds its row; rows of deleted topics are dropped in steps. Every
-- commit updates rows: free space in the pages keeps these updates out of the indexes.
-- `open_offset` is the first offset of the first open transaction, `aborted_offset` the marker of
-- the last aborted one; both are -1 for none. No key has two records below `clean_offset`.
CREATE TABLE diskless_partitions (
    partition_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id         uuid    NOT NULL,
    number           integer NOT NULL CHECK (number >= 0),
    log_start_offset bigint  NOT NULL CHECK (log_start_offset BETWEEN 0 AND high_watermark),
    high_watermark   bigint  NOT NULL,
    size_bytes       bigint  NOT NULL CHECK (size_bytes >= 0),
    wal_extents      bigint  NOT NULL CHECK (wal_extents >= 0),
    wal_bytes        bigint  NOT NULL CHECK (wal_bytes >= 0),
    open_offset      bigint  NOT NULL DEFAULT -1,
    aborted_offset   bigint  NOT NULL DEFAULT -1,
    clean_offset     bigint  NOT NULL DEFAULT 0,
    UNIQUE (topic_id, number)
) WITH (fillfactor = 25, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

CREATE TABLE diskless_extents (
    partition_id   bigint NOT NULL,
    base_offset    bigint NOT NULL,
    next_offset    bigint NOT NULL CHECK (next_offset > base_offset),
    object_id      bigint NOT NULL,
    byte_offset    bigint NOT NULL,
    size_bytes     bigint NOT NULL,
    max_timestamp  bigint NOT NULL,
    append_time_ms bigint NOT NULL,
    layout         bytea  NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
);

-- `batches` are those that the producer may repeat, packed by `values/diskless.py`.
CREATE TABLE diskless_producers (
    partition_id      bigint  NOT NULL,
    producer_id       bigint  NOT NULL,
    epoch             integer NOT NULL,
    seen_ms           bigint  NOT NULL,
    batches           bytea   NOT NULL,
    coordinator_epoch integer NOT NULL DEFAULT -1,
    txn_first_offset  bigint  NOT NULL DEFAULT -1,
    guard_offset      bigint  NOT NULL DEFAULT -1,
    PRIMARY KEY (partition_id, producer_id)
) WITH (fillfactor = 50);

CREATE INDEX diskless_producers_by_time ON diskless_producers (seen_ms);
CREATE INDEX diskless_producers_open ON diskless_producers (partition_id, txn_first_offset)
    WHERE txn_first_offset >= 0;

CREATE TABLE diskless_aborted (
    partition_id       bigint NOT NULL,
    last_offset        bigint NOT NULL,
    producer_id        bigint NOT NULL,
    first_offset       bigint NOT NULL CHECK (first_offset < last_offset),
    last_stable_offset bigint NOT NULL,
    PRIMARY KEY (partition_id, last_offset)
);

-- Requests that move a topic's records, and the participants' progress. `partitions` is packed by
-- `values/diskless.py`. A request's row is locked before it is deleted or committed, and before
-- a participant is written.
CREATE TABLE diskless_switches (
    topic_id    uuid    PRIMARY KEY,
    switch_id   uuid    NOT NULL,
    broker_id   integer NOT NULL,
    incarnation uuid    NOT NULL
);

CREATE TABLE diskless_switch_shares (
    topic_id    uuid    NOT NULL REFERENCES diskless_switches ON DELETE CASCADE,
    broker_id   integer NOT NULL,
    incarnation uuid    NOT NULL,
    state       text    NOT NULL
        CHECK (state IN ('copying', 'ready', 'fenced', 'failed')),
    reason      text    NOT NULL,
    partitions  bytea   NOT NULL,
    PRIMARY KEY (topic_id, broker_id)
);

-- The adopted object store: its random id, and its location at adoption. One row, never changed.
CREATE TABLE diskless_store (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    store_id uuid NOT NULL,
    place    text NOT NULL
);

-- Tiered storage: the archived segments of a partition. Up to four rows of diskless_objects from
-- `object_id` on are a segment's objects.
CREATE TABLE tiered_partitions (
    topic_id         uuid    NOT NULL,
    number           integer NOT NULL CHECK (number >= 0),
    log_start_offset bigint  NOT NULL CHECK (log_start_offset >= 0),
    tiered_offset    bigint  NOT NULL CHECK (tiered_offset >= 0),
    size_bytes       bigint  NOT NULL CHECK (size_bytes >= 0),
    segments         bigint  NOT NULL CHECK (segments >= 0),
    PRIMARY KEY (topic_id, number)
) WITH (fillfactor = 50);

CREATE TABLE tiered_segments (
    topic_id         uuid    NOT NULL,
    number           integer NOT NULL,
    base_offset      bigint  NOT NULL,
    next_offset      bigint  NOT NULL CHECK (next_offset > base_offset),
    leader_epoch     integer NOT NULL,
    max_timestamp    bigint  NOT NULL,
    object_id        bigint  NOT NULL UNIQUE,
    stem             text COLLATE "C" NOT NULL,
    size_bytes       bigint  NOT NULL CHECK (size_bytes > 0),
    index_bytes      bigint  NOT NULL,
    time_index_bytes bigint  NOT NULL,
    aborted_bytes    bigint  NOT NULL,
    checksum         bigint  NOT NULL,
    PRIMARY KEY (topic_id, number, base_offset)
);
