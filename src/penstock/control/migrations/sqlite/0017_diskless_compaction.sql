-- Compacted diskless topics: below this offset no key of a partition has two records.

ALTER TABLE diskless_partitions ADD COLUMN clean_offset INTEGER NOT NULL DEFAULT 0;
