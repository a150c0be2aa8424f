-- Offsets that open transactions have brought. The ordinal counts those of a partition; what was
-- committed after an offset has overtaken it.

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
