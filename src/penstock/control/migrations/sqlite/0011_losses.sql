-- What unclean elections gave up: from which offset of the epoch that they sealed on, by which broker,
-- when, and which replicas were not asked (a JSON list).

CREATE TABLE partition_losses (
    topic_id    BLOB    NOT NULL,
    number      INTEGER NOT NULL,
    epoch       INTEGER NOT NULL,
    sealed      INTEGER NOT NULL,
    from_offset INTEGER NOT NULL,
    broker      INTEGER NOT NULL,
    missing     TEXT    NOT NULL,
    at_ms       INTEGER NOT NULL,
    PRIMARY KEY (topic_id, number, epoch)
) WITHOUT ROWID;
