"""Counts of keys in bounded memory: exact while they fit, a Misra-Gries summary beyond that.

When there are more than `capacity` keys, the count of the one after the last that fits is taken
off all of them, and those that had no more go. What was taken off so far, `error`, bounds how
much any key is undercounted:

    count ≤ true count ≤ count + error          (capacity + 1) · error ≤ records − sum of counts

so error ≤ records / (capacity + 1), and every key with a larger share is still there. A key that
is gone has a count of 0, with the same bound. Bytes are those seen while a key was in the summary.

Source: Misra, Gries: Finding repeated elements (1982); Agarwal, Cormode et al.: Mergeable
summaries (2012), which shows that batches can be taken off at once.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.planner.keys.inputs import SUMMARY_BYTES_MAX

Counts = npt.NDArray[np.int64]
_SCHEMA: Final = pa.schema(
    [("key", pa.large_binary()), ("records", pa.int64()), ("bytes", pa.int64())]
)


class KeySummary:
    """Keys with their records and bytes.

    Args:
        capacity: most keys.
        bytes_max: most bytes of keys.
    """

    __slots__ = ("_bytes_max", "_capacity", "_table", "error", "least_capacity")

    def __init__(self, capacity: int, *, bytes_max: int = SUMMARY_BYTES_MAX) -> None:
        self._capacity = capacity
        self._bytes_max = bytes_max
        self._table = _SCHEMA.empty_table()
        self.error = 0
        """Most records by which any key is undercounted."""
        self.least_capacity = capacity
        """Fewest keys that were kept: less than the capacity when keys are long."""

    @property
    def exact(self) -> bool:
        """Whether no key was ever dropped or undercounted."""
        return self.error == 0

    def merge(self, keys: Any, records: Counts, sizes: Counts) -> None:
        """Add distinct keys with their records and bytes."""
        added = pa.table([keys.cast(pa.large_binary()), records, sizes], schema=_SCHEMA)
        self._table = grouped(pa.concat_tables([self._table, added]))
        lengths = self._lengths()
        if len(lengths) > self._capacity or int(lengths.sum()) > self._bytes_max:
            self._reduce(lengths)

    def ranked(self) -> tuple[Any, Counts, Counts]:
        """Keys, records and bytes, by falling records; of equals the smaller key first."""
        table = self._table.sort_by([("records", "descending"), ("key", "ascending")])
        table = table.combine_chunks()
        key = table["key"]
        keys = key.chunk(0) if key.num_chunks else pa.array([], pa.large_binary())
        return keys, table["records"].to_numpy(), table["bytes"].to_numpy()

    def _lengths(self) -> Counts:
        lengths: Counts = pc.binary_length(self._table["key"]).to_numpy()
        return lengths

    def _reduce(self, lengths: Counts) -> None:
        records = self._table["records"].to_numpy()
        order = np.argsort(-records, kind="stable")
        fitting = int(np.searchsorted(np.cumsum(lengths[order]), self._bytes_max, side="right"))
        kept = min(self._capacity, max(1, fitting))
        if kept >= len(records):
            return
        taken = int(records[order[kept]])
        self.error += taken
        self.least_capacity = min(self.least_capacity, kept)
        rest = self._table.set_column(1, _SCHEMA.field("records"), pa.array(records - taken))
        self._table = rest.filter(pc.greater(rest["records"], 0))


def grouped(table: Any) -> Any:
    """A table of key, records and bytes with each key once."""
    found = table.group_by("key").aggregate([("records", "sum"), ("bytes", "sum")])
    return found.select(["key", "records_sum", "bytes_sum"]).rename_columns(_SCHEMA.names)


def counted(keys: Any, sizes: Any) -> tuple[Any, Counts, Counts]:
    """Distinct keys of a chunked column, with their rows and the sum of `sizes`."""
    table = pa.table({"key": keys, "bytes": sizes})
    found = table.group_by("key").aggregate([("bytes", "count"), ("bytes", "sum")])
    found = found.combine_chunks()
    key = found["key"].chunk(0)
    return key, found["bytes_count"].to_numpy(), found["bytes_sum"].to_numpy()
