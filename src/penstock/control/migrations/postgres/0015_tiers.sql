-- Tiered storage: where each partition begins and up to where it lies in the archive, and its
-- segments there. Objects are rows of diskless_objects: up to four from object_id on.

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
