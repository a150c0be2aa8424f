-- Rows of the schema registry: one per schema, version, context, config, mode and association, by a
-- key. `changed` is the registry's version at the row's last change; deleted rows have a null value,
-- so that other brokers notice the deletion.
CREATE TABLE registry_rows (
    kind    TEXT    NOT NULL,
    key     TEXT    NOT NULL,
    changed INTEGER NOT NULL,
    value   BLOB,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;
CREATE INDEX registry_rows_changed ON registry_rows (changed);

INSERT INTO counters VALUES ('registry_version', 0);
