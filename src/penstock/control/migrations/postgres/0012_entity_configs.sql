-- Configs of what is neither a topic nor a broker: quotas, subscriptions to clients' metrics. The stamp
-- is that of the image that changed them last; null before the first change.

CREATE TABLE entity_configs (
    kind    text NOT NULL,
    name    text NOT NULL,
    configs text NOT NULL,
    PRIMARY KEY (kind, name)
);

ALTER TABLE image_version ADD COLUMN entity_stamp uuid;
