-- Records of coordinators: a row of each key, whose member is empty, and one of each member. Those of
-- groups were one record each; the record becomes the row of the key, in a form that is still read.

CREATE TABLE coordination_records (
    kind    TEXT NOT NULL,
    key     BLOB NOT NULL,
    member  BLOB NOT NULL,
    version INTEGER NOT NULL,
    value   BLOB NOT NULL,
    PRIMARY KEY (kind, key, member)
) WITHOUT ROWID;

INSERT INTO coordination_records
SELECT 'group', CAST(group_id AS BLOB), x'', version, CAST(
    '{"generation":' || generation || ',"protocol_type":' || json_quote(protocol_type)
    || ',"protocol":' || json_quote(protocol) || ',' || substr(CAST(state AS TEXT), 2) AS BLOB)
FROM group_records;

DROP TABLE group_records;

DELETE FROM counters WHERE name = 'highest_group_version';
