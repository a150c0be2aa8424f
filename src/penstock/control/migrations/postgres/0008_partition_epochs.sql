-- Epochs of partitions with several replicas: the highest that was ever reserved, by which process, and
-- the chain of those that were opened. Lists are JSON. Partitions of before have none: their
-- replicas were never filled.
--
-- Rows of `replicated_partitions` are locked in the order of their keys, after metadata.

CREATE TABLE replicated_partitions (
    topic_id    uuid    NOT NULL,
    number      integer NOT NULL CHECK (number >= 0),
    reserved    integer NOT NULL CHECK (reserved >= 0),
    claimant    integer NOT NULL,
    incarnation uuid,
    PRIMARY KEY (topic_id, number)
) WITH (fillfactor = 80);

CREATE TABLE partition_epochs (
    topic_id     uuid    NOT NULL,
    number       integer NOT NULL CHECK (number >= 0),
    epoch        integer NOT NULL CHECK (epoch >= 0),
    start_offset bigint  NOT NULL CHECK (start_offset >= 0),
    end_offset   bigint  CHECK (end_offset >= start_offset),
    replicas     text    NOT NULL,
    ack_quorum   integer NOT NULL,
    leader       integer NOT NULL,
    incarnation  uuid,
    PRIMARY KEY (topic_id, number, epoch),
    CONSTRAINT quorum_of_replicas
        CHECK (ack_quorum >= 1 AND ack_quorum <= json_array_length(replicas::json)),
    CONSTRAINT quorums_share_a_replica CHECK (2 * ack_quorum > json_array_length(replicas::json))
);
CREATE UNIQUE INDEX partition_epochs_open ON partition_epochs (topic_id, number)
    WHERE end_offset IS NULL;
