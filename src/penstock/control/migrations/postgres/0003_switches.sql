-- Topics that are to become diskless, of whose partitions several brokers are leaders; and how far
-- each of those is. What is in `partitions` is packed by `batch_index/formats.py`.
--
-- The row of a switch is locked by whoever adds a share, deletes it, or commits; after metadata.

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
