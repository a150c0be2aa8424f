-- Partitions as rows, as leader, leader epoch, replicas and in-sync replicas change one by one.
-- Lists are JSON.

CREATE TABLE partitions (
    topic_id     uuid    NOT NULL,
    number       integer NOT NULL CHECK (number >= 0),
    leader       integer NOT NULL,
    leader_epoch integer NOT NULL CHECK (leader_epoch >= 0),
    replicas     text    NOT NULL,
    isr          text    NOT NULL,
    PRIMARY KEY (topic_id, number)
);
INSERT INTO partitions
    SELECT t.topic_id, p.place - 1, (p.held ->> 0)::int, (p.held ->> 1)::int, (p.held -> 2)::text,
        (p.held -> 3)::text
    FROM topics t, json_array_elements(t.partitions::json) WITH ORDINALITY AS p (held, place);

ALTER TABLE topics DROP COLUMN partition_count, DROP COLUMN partitions;
