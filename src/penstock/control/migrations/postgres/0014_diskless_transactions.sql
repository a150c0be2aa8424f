-- Transactions in diskless partitions: where the first open one begins and the last aborted one has
-- ended (-1 for none), where each producer stands, and which were aborted, by their markers.

ALTER TABLE diskless_partitions
    ADD COLUMN open_offset bigint NOT NULL DEFAULT -1,
    ADD COLUMN aborted_offset bigint NOT NULL DEFAULT -1;

ALTER TABLE diskless_producers
    ADD COLUMN coordinator_epoch integer NOT NULL DEFAULT -1,
    ADD COLUMN txn_first_offset bigint NOT NULL DEFAULT -1,
    ADD COLUMN guard_offset bigint NOT NULL DEFAULT -1;
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
