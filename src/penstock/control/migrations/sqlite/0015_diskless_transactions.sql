-- Transactions in diskless partitions: where the first open one begins and the last aborted one has
-- ended (-1 for none), where each producer stands, and which were aborted, by their markers.

ALTER TABLE diskless_partitions ADD COLUMN open_offset INTEGER NOT NULL DEFAULT -1;
ALTER TABLE diskless_partitions ADD COLUMN aborted_offset INTEGER NOT NULL DEFAULT -1;

ALTER TABLE diskless_producers ADD COLUMN coordinator_epoch INTEGER NOT NULL DEFAULT -1;
ALTER TABLE diskless_producers ADD COLUMN txn_first_offset INTEGER NOT NULL DEFAULT -1;
ALTER TABLE diskless_producers ADD COLUMN guard_offset INTEGER NOT NULL DEFAULT -1;
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
