-- Metadata, offsets, groups and sink commits. Columns of JSON and of compressed lanes hold lists and
-- maps that are read whole. Text is compared byte by byte, as everywhere else.

-- The database's own time, by which ages are measured. Stable, so that an index may be asked for it.
CREATE FUNCTION penstock_now_ms() RETURNS bigint LANGUAGE sql STABLE AS
    'SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint';

-- One row. It is locked by every change of metadata, so that these come one after the other.
-- `stamp` is drawn with every change: images of equal stamps are equal, whatever else happened.
CREATE TABLE image_version (
    only_row   boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id text   NOT NULL,
    version    bigint NOT NULL,
    membership bigint NOT NULL,
    stamp      uuid   NOT NULL
);

CREATE TABLE counters (
    name  text PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO counters VALUES ('next_producer_id', 0);

CREATE TABLE brokers (
    broker_id   integer PRIMARY KEY,
    host        text,
    port        integer,
    rack        text,
    incarnation uuid,
    epoch       bigint  NOT NULL,
    registered  boolean NOT NULL,
    renewed_ms  bigint  NOT NULL
) WITH (fillfactor = 50);

-- `partitions` is a list of [leader, leader epoch, [replicas], [in sync]], by index.
CREATE TABLE topics (
    topic_id        uuid PRIMARY KEY,
    name            text COLLATE "C" NOT NULL UNIQUE,
    configs         text    NOT NULL,
    internal        boolean NOT NULL,
    partition_count integer NOT NULL CHECK (partition_count > 0),
    partitions      text    NOT NULL,
    stamp           uuid    NOT NULL
);

CREATE TABLE broker_configs (
    broker  text PRIMARY KEY,
    configs text NOT NULL
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

CREATE SEQUENCE group_versions;

CREATE TABLE group_records (
    group_id      text COLLATE "C" PRIMARY KEY,
    version       bigint  NOT NULL,
    generation    integer NOT NULL,
    protocol_type text    NOT NULL,
    protocol      text    NOT NULL,
    state         bytea   NOT NULL
);

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

-- Taken first by every transaction that stores offsets or groups: metadata cannot change before it
-- ends. Where a membership is given it must still be the current one. A function, so that its
-- query sees what was committed while it waited for the lock.
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
