-- The object store that all objects lie in: the random id that is written in it, and where it was
-- when it was adopted. One row, which never changes; none until a store is adopted.

CREATE TABLE diskless_store (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    store_id BLOB NOT NULL CHECK (length(store_id) = 16),
    place    TEXT NOT NULL
);
