"""Inputs of a key plan, and the census: counts of keys and partitions over Arrow batches.

The census runs over one batch after another, with bounded memory. It gathers the keys of batches in
chunks. Each distinct key of a chunk is hashed once. Its records are added to the load of the
partition that Kafka's partitioner chooses, for each requested number of partitions. These loads are
exact for any number of keys. The counts of single keys are exact only while all keys fit the
summary.

**Counts.** Beyond `capacity` keys, a Misra-Gries summary replaces exact counts: the count of the
first key that does not fit is subtracted from all keys, and keys whose count becomes 0 are dropped.
The total of these subtractions, `error`, bounds how much any key is undercounted:

    count ≤ true count ≤ count + error          (capacity + 1) · error ≤ records − sum of counts

So error ≤ records / (capacity + 1), and every key with a larger share is still in the summary. A
dropped key has a count of 0, with the same bound. Bytes are those counted while a key was in the
summary.

**Distinct keys.** HyperLogLog over 32-bit hashes, by columns. The first 14 bits of a key's hash
choose a register. The register keeps the highest position at which the other 18 bits have their
first 1. The harmonic mean of `2^register` gives the number of keys, with a standard error of `1.04
/ √16384` = 0.81 %. Small numbers are computed from empty registers (linear counting). Very large
numbers are corrected for colliding hashes.

Source: Misra, Gries: Finding repeated elements (1982); Agarwal, Cormode et al.: Mergeable summaries
(2012), which shows that batches can be subtracted at once; Flajolet, Fusy, Gandouet, Meunier:
HyperLogLog (2007), whose hashes have 32 bits too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.partitioning import Hashes, murmur2

PENDING_ROWS_MAX: Final = 1 << 20
"""Maximum number of rows that are gathered before they are counted."""
PENDING_BYTES_MAX: Final = 64 << 20
"""Maximum bytes of keys that are gathered before they are counted."""
SUMMARY_BYTES_MAX: Final = 256 << 20
"""Maximum bytes of keys in a summary; beyond it the keys with the fewest records are dropped."""
RATE_SPAN_MS_MIN: Final = 60_000
"""Minimum time between the first and last record for a rate; shorter spans may be one burst."""


_INDEX_BITS: Final = 14
_REST_BITS: Final = 32 - _INDEX_BITS
REGISTERS: Final = 1 << _INDEX_BITS
_ALPHA: Final = 0.7213 / (1 + 1.079 / REGISTERS)
_HASHES: Final = 2.0**32

STANDARD_ERROR: Final = 1.04 / sqrt(REGISTERS)


class DistinctEstimate:
    """Estimate of the number of distinct hashes; adding a hash again does not change it."""

    __slots__ = ("_registers",)

    def __init__(self) -> None:
        self._registers = np.zeros(REGISTERS, np.uint8)

    def add(self, hashes: Hashes) -> None:
        rest = (hashes & np.uint32((1 << _REST_BITS) - 1)).astype(np.float64)
        bit_lengths = np.frexp(rest)[1]
        ranks = (_REST_BITS + 1 - bit_lengths).astype(np.uint8)
        np.maximum.at(self._registers, hashes >> np.uint32(_REST_BITS), ranks)

    def value(self) -> float:
        raw = _ALPHA * REGISTERS**2 / float(np.ldexp(1.0, -self._registers.astype(np.int32)).sum())
        empty = REGISTERS - int(np.count_nonzero(self._registers))
        if raw <= 2.5 * REGISTERS and empty:
            return REGISTERS * log(REGISTERS / empty)
        if raw > _HASHES / 30:
            return -_HASHES * log(1 - min(raw / _HASHES, 1 - 1 / _HASHES))
        return raw


Counts = npt.NDArray[np.int64]
_SCHEMA: Final = pa.schema(
    [("key", pa.large_binary()), ("records", pa.int64()), ("bytes", pa.int64())]
)


class KeySummary:
    """Misra-Gries summary of the busiest keys, with the records and bytes of each.

    Args:
        capacity: maximum number of keys.
        bytes_max: maximum bytes of all keys.
    """

    __slots__ = ("_bytes_max", "_capacity", "_table", "error", "least_capacity")

    def __init__(self, capacity: int, *, bytes_max: int = SUMMARY_BYTES_MAX) -> None:
        self._capacity = capacity
        self._bytes_max = bytes_max
        self._table = _SCHEMA.empty_table()
        self.error = 0
        """Maximum number of records by which any key is undercounted."""
        self.least_capacity = capacity
        """Smallest number of keys kept so far; below the capacity if keys are long."""

    @property
    def exact(self) -> bool:
        return self.error == 0

    def merge(self, keys: Any, records: Counts, sizes: Counts) -> None:
        added = pa.table([keys.cast(pa.large_binary()), records, sizes], schema=_SCHEMA)
        self._table = grouped(pa.concat_tables([self._table, added]))
        lengths = self._lengths()
        if len(lengths) > self._capacity or int(lengths.sum()) > self._bytes_max:
            self._reduce(lengths)

    def ranked(self) -> tuple[Any, Counts, Counts]:
        """Return keys, records and bytes, sorted by descending records and then by key."""
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
    found = table.group_by("key").aggregate([("records", "sum"), ("bytes", "sum")])
    return found.select(["key", "records_sum", "bytes_sum"]).rename_columns(_SCHEMA.names)


def counted(keys: Any, sizes: Any) -> tuple[Any, Counts, Counts]:
    """Return the distinct keys of a chunked column, each with its rows and the sum of `sizes`."""
    table = pa.table({"key": keys, "bytes": sizes})
    found = table.group_by("key").aggregate([("bytes", "count"), ("bytes", "sum")])
    found = found.combine_chunks()
    key = found["key"].chunk(0)
    return key, found["bytes_count"].to_numpy(), found["bytes_sum"].to_numpy()


Loads = npt.NDArray[np.float64]

COLUMNS: Final = ("partition", "timestamp", "key", "value")
"""Columns of a batch that a census reads."""
_POSITIVE: Final = np.uint32(0x7FFFFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class CensusResult:
    """Counts of a census; `keys`, `key_records` and `key_bytes` are sorted by descending records.

    A key has at least `key_records` records, and at most `count_error` more. For each number of
    partitions, `loads` holds the keyed records per partition, by Kafka's partitioner.
    """

    partitions: int
    records: int
    size_bytes: int
    null_records: int
    null_bytes: int
    partition_records: Counts
    partition_bytes: Counts
    default_placed: int
    first_ms: int | None
    last_ms: int | None
    keys: Any
    key_records: Counts
    key_bytes: Counts
    count_error: int
    count_error_max: int
    distinct: float
    distinct_error: float
    loads: Mapping[int, Loads]

    @property
    def exact(self) -> bool:
        return self.count_error == 0

    @property
    def keyed_records(self) -> int:
        return self.records - self.null_records

    @property
    def keyed_bytes(self) -> int:
        return self.size_bytes - self.null_bytes

    @property
    def records_per_second(self) -> float | None:
        if self.first_ms is None or self.last_ms is None:
            return None
        span_ms = self.last_ms - self.first_ms
        return self.records * 1000 / span_ms if span_ms >= RATE_SPAN_MS_MIN else None


class Census:
    """Counter of the keys and partitions of Arrow record batches.

    Args:
        partitions: the topic's number of partitions.
        counts: numbers of partitions for which loads are computed.
        tracked_keys: maximum number of distinct keys that are counted exactly.
        pending_rows_max: maximum rows that are gathered before they are counted.
    """

    def __init__(
        self,
        partitions: int,
        counts: Sequence[int],
        tracked_keys: int,
        *,
        pending_rows_max: int = PENDING_ROWS_MAX,
    ) -> None:
        self._partitions = partitions
        self._tracked_keys = tracked_keys
        self._pending_rows_max = pending_rows_max
        self._loads: dict[int, Loads] = {count: np.zeros(count) for count in counts}
        self._summary = KeySummary(tracked_keys)
        self._distinct = DistinctEstimate()
        self._pending: list[tuple[Any, Any]] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._null_records = 0
        self._null_bytes = 0
        self._default_placed = 0
        self._partition_records = np.zeros(partitions, np.int64)
        self._partition_bytes = np.zeros(partitions, np.int64)
        self._times: list[int] = []

    def add(self, batch: Any) -> None:
        """Count a batch with the columns `COLUMNS`; its partitions must be below the topic's
        number.
        """
        if batch.num_rows == 0:
            return
        keys, partitions = batch["key"], batch["partition"].to_numpy()
        sizes = pc.add(_lengths(keys), _lengths(batch["value"]))
        size_of = sizes.to_numpy()
        count = self._partitions
        self._partition_records += np.bincount(partitions, minlength=count)
        self._partition_bytes += np.bincount(
            partitions, weights=size_of, minlength=count
        ).astype(np.int64)  # fmt: skip
        self._stretch(batch["timestamp"])
        valid = keys.is_valid()
        if keys.null_count:
            self._null_records += keys.null_count
            self._null_bytes += int(size_of.sum()) - int(pc.sum(sizes.filter(valid)).as_py() or 0)
            partitions = partitions[valid.to_numpy(zero_copy_only=False)]
            keys, sizes = keys.filter(valid), sizes.filter(valid)
        if len(keys):
            self._gather(keys, sizes, partitions)

    def result(self) -> CensusResult:
        self._count()
        keys, records, sizes = self._summary.ranked()
        exact = self._summary.exact
        keyed = int(self._partition_records.sum()) - self._null_records
        return CensusResult(
            partitions=self._partitions,
            records=int(self._partition_records.sum()),
            size_bytes=int(self._partition_bytes.sum()),
            null_records=self._null_records,
            null_bytes=self._null_bytes,
            partition_records=self._partition_records,
            partition_bytes=self._partition_bytes,
            default_placed=self._default_placed,
            first_ms=self._times[0] if self._times else None,
            last_ms=self._times[1] if self._times else None,
            keys=keys,
            key_records=records,
            key_bytes=sizes,
            count_error=self._summary.error,
            count_error_max=keyed // (self._summary.least_capacity + 1),
            distinct=float(len(keys)) if exact else max(len(keys), self._distinct.value()),
            distinct_error=0.0 if exact else STANDARD_ERROR,
            loads=self._loads,
        )

    def _stretch(self, times: Any) -> None:
        ends = pc.min_max(times.cast(pa.int64()))
        if ends["min"].is_valid:
            found = [ends["min"].as_py(), ends["max"].as_py(), *self._times]
            self._times = [min(found), max(found)]

    def _gather(self, keys: Any, sizes: Any, partitions: npt.NDArray[np.int32]) -> None:
        hashes = _hashes(keys)
        placed = hashes % np.uint32(self._partitions) == partitions
        self._default_placed += int(np.count_nonzero(placed))
        self._pending.append((keys, sizes))
        self._pending_rows += len(keys)
        self._pending_bytes += keys.nbytes
        if self._pending_rows >= self._pending_rows_max or self._pending_bytes >= PENDING_BYTES_MAX:
            self._count()

    def _count(self) -> None:
        if not self._pending:
            return
        keys, records, sizes = counted(
            pa.chunked_array([keys for keys, _ in self._pending]),
            pa.chunked_array([sizes for _, sizes in self._pending]),
        )
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0
        hashes = murmur2(keys)
        self._distinct.add(hashes)
        hashes &= _POSITIVE
        for count, loads in self._loads.items():
            loads += np.bincount(hashes % np.uint32(count), weights=records, minlength=count)
        self._summary.merge(keys, records, sizes)


def _lengths(column: Any) -> Any:
    return pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())


def _hashes(keys: Any) -> Hashes:
    return murmur2(keys) & _POSITIVE
