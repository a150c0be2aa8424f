-- Offsets that open transactions have brought. The ordinal counts those of a partition; what was
-- committed after an offset has overtaken it.

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
