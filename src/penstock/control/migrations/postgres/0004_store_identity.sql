-- The object store that all objects lie in: the random id that is written in it, and where it was
-- when it was adopted. One row, which never changes; none until a store is adopted.

CREATE TABLE diskless_store (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    store_id uuid NOT NULL,
    place    text NOT NULL
);
