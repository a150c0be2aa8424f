-- Topics that are to become diskless, of whose partitions several brokers are leaders; and how far
-- each of those is. What is in `partitions` is packed by `batch_index/formats.py`.

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
