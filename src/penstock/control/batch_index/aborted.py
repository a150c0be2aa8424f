"""Statements for the transactions of diskless partitions, open or aborted.

An open transaction is stored in the row of its producer. An aborted one has a row of its own, with
the offset of its marker, as in a segment's transaction index. This row also has the last stable
offset at the time of the marker. All transactions below it had ended by then, so a reader of lower
offsets needs no later row.

Source: Kafka's `AbortedTxn` and `TransactionIndex`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.control.batch_index import partitions
from penstock.control.batch_index.rules import EMPTY, PartitionRow
from penstock.control.batch_index.values import Aborted, PartitionKey
from penstock.control.drivers.statements import Each, Operation, changed, rows
from penstock.records.transactions import AbortedTransaction

_open = Each(
    "rows",
    "SELECT k.place, s.producer_id, s.txn_first_offset FROM unnest($1::bigint[], $2::int[])"
    " AS k (partition_id, place) JOIN diskless_producers s ON s.partition_id = k.partition_id"
    " WHERE s.txn_first_offset >= 0",
    sqlite="SELECT $2, producer_id, txn_first_offset FROM diskless_producers"
    " WHERE partition_id = $1 AND txn_first_offset >= 0",
)
insert = Each(
    "changed",
    "INSERT INTO diskless_aborted (partition_id, last_offset, producer_id, first_offset,"
    " last_stable_offset) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[],"
    " $4::bigint[], $5::bigint[])",
    sqlite="INSERT INTO diskless_aborted VALUES ($1, $2, $3, $4, $5)",
)


_from: Final = rows(
    f"SELECT {partitions.ROW}, a.producer_id, a.first_offset, a.last_offset,"  # noqa: S608
    " a.last_stable_offset FROM diskless_partitions p"
    " LEFT JOIN diskless_aborted a ON a.partition_id = p.partition_id AND a.last_offset >= $3"
    " WHERE p.topic_id = $1 AND p.number = $2 ORDER BY a.last_offset LIMIT $4"
)
"""Reads a partition's row and its aborted transactions in one snapshot.

With two statements, a transaction that is aborted between them would be missing from both results.
"""

drop_below = changed("DELETE FROM diskless_aborted WHERE partition_id = $1 AND last_offset < $2")
drop = changed(
    "DELETE FROM diskless_aborted WHERE partition_id = $1 AND last_offset IN"
    " (WITH few AS MATERIALIZED (SELECT last_offset FROM diskless_aborted"
    " WHERE partition_id = $1 ORDER BY last_offset LIMIT $2) SELECT last_offset FROM few)"
)


def open_in(
    found: Mapping[PartitionKey, PartitionRow], keys: Iterable[PartitionKey]
) -> Operation[dict[PartitionKey, dict[int, int]]]:
    """Return the first offset of each open transaction, by partition, then by producer id.

    Producers are in the order of these offsets. `found` has the rows of partitions; keys without a
    row are skipped.
    """
    asked = [key for key in keys if key in found]
    begun: dict[PartitionKey, dict[int, int]] = {key: {} for key in asked}
    if asked:
        there = yield _open([(found[key].partition_id, place) for place, key in enumerate(asked)])
        for place, producer_id, first_offset in sorted(there, key=_first_offset):
            begun[asked[place]][producer_id] = first_offset
    return begun


def _first_offset(row: Any) -> int:
    return int(row[2])


def aborted_from(key: PartitionKey, offset: int, limit: int) -> Operation[Aborted]:
    """Return up to `limit` aborted transactions whose markers are at or above `offset`."""
    found = yield _from(*key, offset, limit)
    row = PartitionRow._make(found[0][:8]) if found else EMPTY
    transactions = tuple(
        [AbortedTransaction._make(found_row[8:]) for found_row in found if found_row[8] is not None]
    )
    complete_to = transactions[-1].last_stable_offset if len(transactions) == limit else None
    return Aborted(transactions, row.watermarks, complete_to)


def rows_of(partition_id: int, transactions: Iterable[AbortedTransaction]) -> list[tuple[int, ...]]:
    return [
        (
            partition_id,
            transaction.last_offset,
            transaction.producer_id,
            transaction.first_offset,
            transaction.last_stable_offset,
        )
        for transaction in transactions
    ]
