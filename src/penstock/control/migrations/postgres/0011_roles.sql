-- What a broker is for (broker.roles): a JSON list. One that registers without them, of an older release,
-- has all.

ALTER TABLE brokers ADD COLUMN roles text NOT NULL DEFAULT '["ingestion", "persistence"]';
