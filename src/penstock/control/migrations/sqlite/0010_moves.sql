-- A placement that a partition is to have next, as a JSON list, and the number of the order for it: the
-- version of the metadata that it was made in. No list and 0 where nothing is ordered.

ALTER TABLE partitions ADD COLUMN target TEXT NOT NULL DEFAULT '[]';
ALTER TABLE partitions ADD COLUMN move INTEGER NOT NULL DEFAULT 0 CHECK (move >= 0);
