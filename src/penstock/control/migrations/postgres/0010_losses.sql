-- What unclean elections gave up: from which offset of the epoch that they sealed on, by which broker,
-- when, and which replicas were not asked (a JSON list).

CREATE TABLE partition_losses (
    topic_id    uuid    NOT NULL,
    number      integer NOT NULL,
    epoch       integer NOT NULL,
    sealed      integer NOT NULL,
    from_offset bigint  NOT NULL,
    broker      integer NOT NULL,
    missing     text    NOT NULL,
    at_ms       bigint  NOT NULL,
    PRIMARY KEY (topic_id, number, epoch)
);
