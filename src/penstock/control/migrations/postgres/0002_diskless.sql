-- Diskless topics: objects, and the index of the batches in them, a row per extent. Ids of objects
-- and keys never come again; extents do not reference objects by constraint, as each object counts
-- the extents that refer to it. Times are `penstock_now_ms()`.
--
-- Locks are taken in this order: metadata (shared), a commit's own PENDING object, which nobody
-- else waits for, partitions by id, objects that extents refer to by id.

INSERT INTO counters VALUES ('highest_object_id', 0);

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

-- First answers of commits, for those that are repeated.
CREATE TABLE diskless_answers (
    object_id    bigint PRIMARY KEY,
    committed_ms bigint NOT NULL,
    answer       bytea  NOT NULL
);

CREATE INDEX diskless_answers_by_time ON diskless_answers (committed_ms);

-- Partitions come with their first commit; those of deleted topics are dropped piece by piece.
-- Every commit updates their rows: room in the page keeps those updates out of the indexes.
CREATE TABLE diskless_partitions (
    partition_id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id         uuid    NOT NULL,
    number           integer NOT NULL CHECK (number >= 0),
    log_start_offset bigint  NOT NULL CHECK (log_start_offset BETWEEN 0 AND high_watermark),
    high_watermark   bigint  NOT NULL,
    size_bytes       bigint  NOT NULL CHECK (size_bytes >= 0),
    wal_extents      bigint  NOT NULL CHECK (wal_extents >= 0),
    wal_bytes        bigint  NOT NULL CHECK (wal_bytes >= 0),
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

-- Batches are those that the producer may repeat, as `batch_index/formats.py` packs them.
CREATE TABLE diskless_producers (
    partition_id bigint  NOT NULL,
    producer_id  bigint  NOT NULL,
    epoch        integer NOT NULL,
    seen_ms      bigint  NOT NULL,
    batches      bytea   NOT NULL,
    PRIMARY KEY (partition_id, producer_id)
) WITH (fillfactor = 50);

CREATE INDEX diskless_producers_by_time ON diskless_producers (seen_ms);
