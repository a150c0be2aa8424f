-- Epochs of partitions with several replicas: the highest that was ever reserved, by which process, and
-- the chain of those that were opened. Lists are JSON. Partitions of before have none: their
-- replicas were never filled.

CREATE TABLE replicated_partitions (
    topic_id    BLOB    NOT NULL,
    number      INTEGER NOT NULL CHECK (number >= 0),
    reserved    INTEGER NOT NULL CHECK (reserved >= 0),
    claimant    INTEGER NOT NULL,
    incarnation BLOB,
    PRIMARY KEY (topic_id, number)
) WITHOUT ROWID;

CREATE TABLE partition_epochs (
    topic_id     BLOB    NOT NULL,
    number       INTEGER NOT NULL CHECK (number >= 0),
    epoch        INTEGER NOT NULL CHECK (epoch >= 0),
    start_offset INTEGER NOT NULL CHECK (start_offset >= 0),
    end_offset   INTEGER CHECK (end_offset >= start_offset),
    replicas     TEXT    NOT NULL,
    ack_quorum   INTEGER NOT NULL,
    leader       INTEGER NOT NULL,
    incarnation  BLOB,
    PRIMARY KEY (topic_id, number, epoch),
    CONSTRAINT quorum_of_replicas
        CHECK (ack_quorum >= 1 AND ack_quorum <= json_array_length(replicas)),
    CONSTRAINT quorums_share_a_replica CHECK (2 * ack_quorum > json_array_length(replicas))
) WITHOUT ROWID;

CREATE UNIQUE INDEX partition_epochs_open ON partition_epochs (topic_id, number)
    WHERE end_offset IS NULL;
