-- Configs of what is neither a topic nor a broker: quotas, subscriptions to clients' metrics. The stamp
-- is that of the image that changed them last; null before the first change.

CREATE TABLE entity_configs (
    kind    TEXT NOT NULL,
    name    TEXT NOT NULL,
    configs TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

ALTER TABLE image_version ADD COLUMN entity_stamp BLOB;
