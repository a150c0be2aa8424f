-- Records of coordinators: a row of each key, whose member is empty, and one of each member. Those of
-- groups were one record each; the record becomes the row of the key, in a form that is still read.

CREATE TABLE coordination_records (
    kind    text COLLATE "C" NOT NULL,
    key     bytea  NOT NULL,
    member  bytea  NOT NULL,
    version bigint NOT NULL,
    value   bytea  NOT NULL,
    PRIMARY KEY (kind, key, member)
) WITH (fillfactor = 80);

INSERT INTO coordination_records
SELECT 'group', convert_to(group_id, 'UTF8'), '', version, convert_to(
    '{"generation":' || generation || ',"protocol_type":' || to_json(protocol_type)
    || ',"protocol":' || to_json(protocol) || ',', 'UTF8') || substring(state FROM 2)
FROM group_records;

DROP TABLE group_records;
DROP SEQUENCE group_versions;
