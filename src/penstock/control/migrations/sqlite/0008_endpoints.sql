-- The addresses of a broker for clients: a JSON list of [listener, host, port]. Who comes by a listener
-- that is not there is told host and port.

ALTER TABLE brokers ADD COLUMN endpoints TEXT NOT NULL DEFAULT '[]';
