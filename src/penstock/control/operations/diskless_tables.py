"""Tables of diskless topics: objects, extents, partitions, transactions and migrations.

The rows of objects include the stored results of commits, and the object store's identity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from penstock.control.drivers.statements import (
    Call,
    Each,
    One,
    Operation,
    Scan,
    changed,
    row,
    rows,
    uuid_of,
    value,
)
from penstock.control.rules.diskless import EMPTY, PartitionRow, ProducerKey
from penstock.control.values.diskless import (
    Aborted,
    MarkedObject,
    MigrationParticipant,
    MigrationRequest,
    ObjectLease,
    ObjectState,
    PartitionKey,
    RunningMigration,
    StoreIdentity,
    decode_batches,
    decode_partitions,
    encode_batches,
    encode_partitions,
)
from penstock.records.extents import Extent
from penstock.records.idempotence import Producer
from penstock.records.transactions import AbortedTransaction

_HIGHEST_ID: Final = "SELECT value FROM counters WHERE name = 'highest_object_id'"
_RAISE: Final = "UPDATE counters SET value = value + $1 WHERE name = 'highest_object_id'"

highest_id = value(_HIGHEST_ID)
allocate_ids = value(f"{_RAISE} RETURNING value", sqlite=(_RAISE, _HIGHEST_ID))
"""Reserves object ids. Takes their number; returns the highest of the new ids."""

now = value("SELECT penstock_now_ms()")
_store = row("SELECT store_id, place FROM diskless_store")
adopt_store = changed("INSERT INTO diskless_store VALUES (true, $1, $2) ON CONFLICT DO NOTHING")
write_leases = Each(
    "changed",
    "INSERT INTO diskless_objects SELECT object_id, key, 'pending', 'wal', 0, 0,"
    " penstock_now_ms() FROM unnest($1::bigint[], $2::text[]) AS new (object_id, key)",
    sqlite="INSERT INTO diskless_objects"
    " VALUES ($1, $2, 'pending', 'wal', 0, 0, penstock_now_ms())",
)
_lock = Each(
    "rows",
    "SELECT o.object_id, o.key, o.state, penstock_now_ms(), v.stamp"
    " FROM diskless_objects o, image_version v WHERE o.object_id = ANY($1::bigint[])"
    " ORDER BY o.object_id FOR UPDATE OF o",
    sqlite="SELECT object_id, key, state, penstock_now_ms(), NULL"
    " FROM diskless_objects WHERE object_id = $1",
)
write_committed = Each(
    "changed",
    "UPDATE diskless_objects o SET state = n.state, kind = n.kind, size_bytes = n.size_bytes,"
    " extents = n.extents, changed_ms = penstock_now_ms() FROM unnest($1::bigint[], $2::text[],"
    " $3::text[], $4::bigint[], $5::bigint[]) AS n (object_id, state, kind, size_bytes, extents)"
    " WHERE o.object_id = n.object_id AND o.state = 'pending'",
    sqlite="UPDATE diskless_objects SET state = $2, kind = $3, size_bytes = $4, extents = $5,"
    " changed_ms = penstock_now_ms() WHERE object_id = $1 AND state = 'pending'",
)
"""Commits PENDING objects. Takes rows of (id, state, kind, bytes, number of extents)."""

renew_leases = Each(
    "changed",
    "UPDATE diskless_objects SET changed_ms = penstock_now_ms()"
    " WHERE object_id = ANY($1::bigint[])",
)
_answers = Each(
    "rows",
    "SELECT object_id, answer FROM diskless_answers WHERE object_id = ANY($1::bigint[])",
)
write_answer = Each(
    "changed",
    "INSERT INTO diskless_answers SELECT n.object_id, penstock_now_ms(), n.answer"
    " FROM unnest($1::bigint[], $2::bytea[]) AS n (object_id, answer)",
    sqlite="INSERT INTO diskless_answers VALUES ($1, penstock_now_ms(), $2)",
)
drop_answers = changed(
    "DELETE FROM diskless_answers WHERE object_id IN"
    " (WITH old AS MATERIALIZED (SELECT object_id FROM diskless_answers"
    " WHERE committed_ms <= penstock_now_ms() - $1 ORDER BY committed_ms LIMIT $2"
    " FOR UPDATE SKIP LOCKED) SELECT object_id FROM old)"
)
"""Deletes the oldest results of commits.

Takes a minimum age in milliseconds and a limit of rows.
"""

release = Each(
    "changed",
    "WITH locked AS (SELECT object_id FROM diskless_objects WHERE object_id = ANY($1::bigint[])"
    " ORDER BY object_id FOR UPDATE)"
    " UPDATE diskless_objects o SET extents = o.extents - gone.count,"
    " changed_ms = CASE WHEN o.extents = gone.count THEN penstock_now_ms() ELSE o.changed_ms END"
    " FROM locked JOIN unnest($1::bigint[], $2::bigint[]) AS gone (object_id, count)"
    " ON gone.object_id = locked.object_id WHERE o.object_id = locked.object_id",
    sqlite="UPDATE diskless_objects SET extents = extents - $2,"
    " changed_ms = CASE WHEN extents = $2 THEN penstock_now_ms() ELSE changed_ms END"
    " WHERE object_id = $1",
)
"""Lowers the number of extents that refer to an object.

Takes rows of (id, number of dropped extents).
"""


def _mark_deleting(which: str) -> One:
    """Return a statement that marks the objects of condition `which` as DELETING.

    Its values are the milliseconds since when an object must have been in its state, and the
    maximum number of objects. It skips rows that another broker has locked.
    """
    return changed(
        "UPDATE diskless_objects SET state = 'deleting', changed_ms = penstock_now_ms()"  # noqa: S608
        " WHERE object_id IN"
        f" (WITH old AS MATERIALIZED (SELECT object_id FROM diskless_objects WHERE {which}"
        " AND changed_ms <= penstock_now_ms() - $1 ORDER BY changed_ms, object_id LIMIT $2"
        " FOR UPDATE SKIP LOCKED) SELECT object_id FROM old)"
    )


mark_pending = _mark_deleting("state = 'pending'")
mark_unreferenced = _mark_deleting("state = 'committed' AND extents = 0")
"""Each condition must equal the text of a partial index's condition, so that the index is used."""

_deleting = rows(
    "SELECT object_id, key, size_bytes FROM diskless_objects WHERE state = 'deleting'"
    " ORDER BY object_id LIMIT $1"
)
forget = Each(
    "changed",
    "DELETE FROM diskless_objects WHERE object_id = ANY($1::bigint[]) AND state = 'deleting'",
)
forget_answers = Each(
    "changed",
    "DELETE FROM diskless_answers WHERE object_id = ANY($1::bigint[])"
    " AND NOT EXISTS (SELECT 1 FROM diskless_objects o"
    " WHERE o.object_id = diskless_answers.object_id)",
)
totals = rows("SELECT state, kind, count(*), sum(size_bytes) FROM diskless_objects GROUP BY 1, 2")
keys_after = rows(
    "SELECT state, object_id, key FROM diskless_objects WHERE key > $1 ORDER BY key LIMIT $2"
)


class ObjectRow(NamedTuple):
    """The row of an object, with the control plane's time and the metadata image's stamp.

    The stamp shows if the cached image is current. It is None in SQLite, where it always is.
    """

    lease: ObjectLease
    state: ObjectState
    now_ms: int
    stamp: UUID | None


def lock(object_ids: Iterable[int]) -> Operation[dict[int, ObjectRow]]:
    found = yield _lock([(object_id,) for object_id in object_ids])
    return {
        object_id: ObjectRow(ObjectLease(object_id, key), state, now_ms, stamp and uuid_of(stamp))
        for object_id, key, state, now_ms, stamp in found
    }


def answers(object_ids: Iterable[int]) -> Operation[dict[int, bytes]]:
    return dict((yield _answers([(object_id,) for object_id in object_ids])))


def deleting(limit: int) -> Operation[list[MarkedObject]]:
    return list(map(MarkedObject._make, (yield _deleting(limit))))


def store() -> Operation[StoreIdentity | None]:
    found = yield _store()
    return None if found is None else StoreIdentity(uuid_of(found[0]), found[1])


ROW: Final = (
    "p.partition_id, p.log_start_offset, p.high_watermark, p.size_bytes, p.wal_extents,"
    " p.wal_bytes, p.open_offset, p.aborted_offset"
)
_OF_KEY: Final = (
    f"SELECT $3, {ROW} FROM diskless_partitions p"  # noqa: S608  (fixed, as all)
    " WHERE p.topic_id = $1 AND p.number = $2"
)
_OF_KEYS: Final = (
    f"SELECT k.place, {ROW} FROM unnest($1::uuid[], $2::int[], $3::int[])"  # noqa: S608
    " AS k (topic_id, number, place)"
    " JOIN diskless_partitions p ON p.topic_id = k.topic_id AND p.number = k.number"
)
_read = Each("rows", _OF_KEYS, sqlite=_OF_KEY)
_partitions_lock = Each(
    "rows", f"{_OF_KEYS} ORDER BY p.partition_id FOR UPDATE OF p", sqlite=_OF_KEY
)
_add = Each(
    "changed",
    "INSERT INTO diskless_partitions (topic_id, number, log_start_offset, high_watermark,"
    " size_bytes, wal_extents, wal_bytes) SELECT k.topic_id, k.number, 0, 0, 0, 0, 0"
    " FROM unnest($1::uuid[], $2::int[]) AS k (topic_id, number)"
    " ON CONFLICT (topic_id, number) DO NOTHING",
    sqlite="INSERT INTO diskless_partitions VALUES (NULL, $1, $2, 0, 0, 0, 0, 0, -1, -1, 0)"
    " ON CONFLICT (topic_id, number) DO NOTHING",
)
write_rows = Each(
    "changed",
    "UPDATE diskless_partitions p SET log_start_offset = n.log_start_offset,"
    " high_watermark = n.high_watermark, size_bytes = n.size_bytes, wal_extents = n.wal_extents,"
    " wal_bytes = n.wal_bytes, open_offset = n.open_offset, aborted_offset = n.aborted_offset"
    " FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[],"
    " $6::bigint[], $7::bigint[], $8::bigint[]) AS n (partition_id, log_start_offset,"
    " high_watermark, size_bytes, wal_extents, wal_bytes, open_offset, aborted_offset)"
    " WHERE p.partition_id = n.partition_id",
    sqlite="UPDATE diskless_partitions SET log_start_offset = $2, high_watermark = $3,"
    " size_bytes = $4, wal_extents = $5, wal_bytes = $6, open_offset = $7, aborted_offset = $8"
    " WHERE partition_id = $1",
)
clean_offset = value(
    "SELECT clean_offset FROM diskless_partitions WHERE topic_id = $1 AND number = $2"
)
note_clean = changed(
    "UPDATE diskless_partitions SET clean_offset = $2 WHERE partition_id = $1 AND clean_offset < $2"
)
"""Stores a partition's clean offset, below which no key has two records.

Takes (partition id, offset).
"""
retire = changed("UPDATE diskless_partitions SET topic_id = $2 WHERE topic_id = $1")
"""Moves the rows of a topic's partitions to an id that no topic has.

Takes (topic id, new id). Background jobs then delete the rows, as they do after the deletion of a
topic.
"""
drop_row = changed("DELETE FROM diskless_partitions WHERE partition_id = $1")
forgotten = value(
    "SELECT p.partition_id FROM diskless_partitions p"
    " WHERE NOT EXISTS (SELECT 1 FROM topics t WHERE t.topic_id = p.topic_id)"
    " ORDER BY p.partition_id LIMIT 1 FOR UPDATE OF p SKIP LOCKED"
)
"""Locks and returns the id of one partition whose topic is deleted.

Skips locked rows; returns None if none is left.
"""

backlogs = rows(
    "SELECT p.topic_id, p.number, p.wal_extents, p.wal_bytes,"
    " (SELECT e.max_timestamp FROM diskless_extents e JOIN diskless_objects o"
    " ON o.object_id = e.object_id WHERE e.partition_id = p.partition_id AND o.kind = 'wal'"
    " ORDER BY e.base_offset LIMIT 1)"
    " FROM diskless_partitions p JOIN topics t ON t.topic_id = p.topic_id"
    " WHERE p.wal_extents >= $1 ORDER BY p.wal_extents DESC, p.topic_id, p.number LIMIT $2"
)
_STATE: Final = (
    "s.epoch, s.batches, s.seen_ms, s.coordinator_epoch, s.txn_first_offset, s.guard_offset"
)
_producers = Each(
    "rows",
    f"SELECT k.place, {_STATE} FROM unnest($1::bigint[], $2::bigint[],"  # noqa: S608
    " $3::int[]) AS k (partition_id, producer_id, place) JOIN diskless_producers s"
    " ON s.partition_id = k.partition_id AND s.producer_id = k.producer_id",
    sqlite=f"SELECT $3, {_STATE} FROM diskless_producers s"  # noqa: S608
    " WHERE s.partition_id = $1 AND s.producer_id = $2",
)
_producers_of = rows(
    f"SELECT s.producer_id, {_STATE} FROM diskless_producers s"  # noqa: S608
    " JOIN diskless_partitions p ON p.partition_id = s.partition_id"
    " WHERE p.topic_id = $1 AND p.number = $2 ORDER BY s.producer_id"
)
write_producers = Each(
    "changed",
    "INSERT INTO diskless_producers (partition_id, producer_id, epoch, seen_ms, batches,"
    " coordinator_epoch, txn_first_offset, guard_offset)"
    " SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::int[], $4::bigint[], $5::bytea[],"
    " $6::int[], $7::bigint[], $8::bigint[]) ON CONFLICT (partition_id, producer_id) DO UPDATE"
    " SET epoch = excluded.epoch, seen_ms = excluded.seen_ms, batches = excluded.batches,"
    " coordinator_epoch = excluded.coordinator_epoch,"
    " txn_first_offset = excluded.txn_first_offset, guard_offset = excluded.guard_offset",
    sqlite="INSERT OR REPLACE INTO diskless_producers VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
)


drop_producers = changed(
    "DELETE FROM diskless_producers WHERE partition_id = $1 AND producer_id IN"
    " (WITH few AS MATERIALIZED (SELECT producer_id FROM diskless_producers"
    " WHERE partition_id = $1 LIMIT $2) SELECT producer_id FROM few)"
)
drop_idle_producers = changed(
    "DELETE FROM diskless_producers WHERE (partition_id, producer_id) IN"
    " (WITH idle AS MATERIALIZED (SELECT partition_id, producer_id FROM diskless_producers"
    " WHERE seen_ms <= penstock_now_ms() - $1 AND txn_first_offset < 0"
    " ORDER BY seen_ms LIMIT $2 FOR UPDATE SKIP LOCKED)"
    " SELECT partition_id, producer_id FROM idle)"
)
"""Lists with a limit are materialised: a join that restarted the scan would find more rows."""


def read(
    keys: Iterable[PartitionKey], *, lock: bool = False
) -> Operation[dict[PartitionKey, PartitionRow]]:
    """Return the rows of those partitions that have one.

    `lock` locks them in the order of partition ids.
    """
    asked = list(keys)
    found = yield (_partitions_lock if lock else _read)(
        [(topic_id, number, place) for place, (topic_id, number) in enumerate(asked)]
    )
    return {asked[found_row[0]]: PartitionRow._make(found_row[1:]) for found_row in found}


def lock_one(key: PartitionKey) -> Operation[PartitionRow]:
    return (yield from read([key], lock=True)).get(key, EMPTY)


def lock_or_add(keys: Collection[PartitionKey]) -> Operation[dict[PartitionKey, PartitionRow]]:
    """Lock the rows of partitions, add missing rows, and return all of them."""
    found = yield from read(keys, lock=True)
    if len(found) < len(keys):
        yield _add(sorted([key for key in keys if key not in found]))
        found = yield from read(keys, lock=True)
    return found


def producers(
    rows: Mapping[PartitionKey, PartitionRow], keys: Iterable[ProducerKey]
) -> Operation[dict[ProducerKey, Producer]]:
    asked: list[ProducerKey] = []
    where: list[tuple[int, int, int]] = []
    for key in keys:
        row = rows.get(key[:2])
        if row is not None:
            where.append((row.partition_id, key[2], len(asked)))
            asked.append(key)
    found = yield _producers(where)
    return {
        asked[place]: Producer(epoch, decode_batches(batches), *others)
        for place, epoch, batches, *others in found
    }


def producers_of(key: PartitionKey) -> Operation[list[tuple[int, Producer]]]:
    return [
        (producer_id, Producer(epoch, decode_batches(batches), *others))
        for producer_id, epoch, batches, *others in (yield _producers_of(*key))
    ]


def producer_row(partition_id: int, producer_id: int, state: Producer) -> tuple[Any, ...]:
    epoch, batches, seen_ms, coordinator_epoch, txn_first_offset, guard_offset = state
    return (
        partition_id, producer_id, epoch, seen_ms, encode_batches(batches), coordinator_epoch,
        txn_first_offset, guard_offset,
    )  # fmt: skip


_EXTENT: Final = (
    "e.object_id, o.key, o.kind, e.byte_offset, e.size_bytes, e.base_offset, e.next_offset,"
    " e.max_timestamp, e.append_time_ms, e.layout"
)
_EXTENTS: Final = (
    f"SELECT {_EXTENT} FROM diskless_extents e JOIN diskless_objects o ON o.object_id = e.object_id"  # noqa: S608
)
_EXTENTS_OF_KEY: Final = (
    f"{_EXTENTS} JOIN diskless_partitions p ON p.partition_id = e.partition_id"
    " WHERE p.topic_id = $1 AND p.number = $2"
)
_FIRST: Final = (
    "coalesce((SELECT max(x.base_offset) FROM diskless_extents x"
    " WHERE x.partition_id = {partition} AND x.base_offset <= {offset}), 0)"
)
"""Base offset of the extent that holds an offset. The subquery is evaluated once, not per row."""

_ID: Final = "(SELECT partition_id FROM diskless_partitions WHERE topic_id = $1 AND number = $2)"

find = Scan(
    f"""
    SELECT (SELECT stamp FROM image_version), {ROW}, e.*, k.place
    FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::int[])
        AS k (topic_id, number, first_offset, place)
    LEFT JOIN diskless_partitions p ON p.topic_id = k.topic_id AND p.number = k.number
    LEFT JOIN LATERAL (
        SELECT {_EXTENT} FROM (
            SELECT * FROM diskless_extents
            WHERE partition_id = p.partition_id
                AND k.first_offset >= p.log_start_offset AND k.first_offset < p.high_watermark
                AND base_offset
                    >= {_FIRST.format(partition="p.partition_id", offset="k.first_offset")}
            ORDER BY base_offset LIMIT $5
        ) e JOIN diskless_objects o ON o.object_id = e.object_id
    ) e ON true
    ORDER BY k.place, e.base_offset
    """,  # noqa: S608
    sqlite=f"""
    SELECT NULL, {ROW}, {_EXTENT}
    FROM diskless_partitions p
    LEFT JOIN diskless_extents e ON e.partition_id = p.partition_id
        AND $3 >= p.log_start_offset AND $3 < p.high_watermark
        AND e.base_offset >= {_FIRST.format(partition="p.partition_id", offset="$3")}
    LEFT JOIN diskless_objects o ON o.object_id = e.object_id
    WHERE p.topic_id = $1 AND p.number = $2 ORDER BY e.base_offset
    """,  # noqa: S608
)
"""Reads partitions and their extents.

Takes rows of (topic id, partition, offset), and the number of extents to read per row, which
PostgreSQL alone applies.

A single statement reads one snapshot: a commit's extents and its high watermark appear together.
"""


def stamp_of(found: Any) -> UUID | None:
    """Return the image's stamp in a row of `find`.

    SQLite has none there: its cached image is current.
    """
    return None if found[0] is None else uuid_of(found[0])


def partition_of(found: Any) -> PartitionRow:
    return EMPTY if found is None or found[1] is None else PartitionRow._make(found[1:9])


def has_extent(found: Any) -> bool:
    """Return whether a row of `find` has an extent. Only a partition's first row may lack one."""
    return found[9] is not None


def extent_of(found: Any) -> Extent:
    return Extent._make(found[9:19])


_from = rows(
    f"{_EXTENTS} WHERE e.partition_id = $1 AND e.next_offset > $2"
    f" AND e.base_offset >= {_FIRST.format(partition='$1', offset='$2')}"
    " ORDER BY e.base_offset LIMIT $3"
)
between = rows(
    f"{_EXTENTS} WHERE e.partition_id = {_ID} AND e.next_offset > $3 AND e.base_offset < $4"
    f" AND e.base_offset >= {_FIRST.format(partition=_ID, offset='$3')}"
    " ORDER BY e.base_offset LIMIT $5"
)
at_time = row(
    f"{_EXTENTS_OF_KEY} AND e.next_offset > p.log_start_offset AND e.max_timestamp >= $3"
    " ORDER BY e.base_offset LIMIT 1"
)
newest = row(
    f"{_EXTENTS_OF_KEY} AND e.next_offset > p.log_start_offset"
    " ORDER BY e.max_timestamp DESC, e.base_offset LIMIT 1"
)
insert = Each(
    "changed",
    "INSERT INTO diskless_extents (partition_id, base_offset, next_offset, object_id, byte_offset,"
    " size_bytes, max_timestamp, append_time_ms, layout) SELECT * FROM unnest($1::bigint[],"
    " $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],"
    " $8::bigint[], $9::bytea[])",
    sqlite="INSERT INTO diskless_extents VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
)


_drop = changed(
    "DELETE FROM diskless_extents WHERE partition_id = $1 AND base_offset BETWEEN $2 AND $3"
)


def extents_from(partition_id: int, offset: int, limit: int) -> Operation[list[Extent]]:
    """Return up to `limit` extents of a partition, from the extent that holds `offset` on."""
    return list(map(Extent._make, (yield _from(partition_id, offset, limit))))


def drop(partition_id: int, extents: Sequence[Extent]) -> Operation[None]:
    if extents:
        yield _drop(partition_id, extents[0].base_offset, extents[-1].base_offset)


def rows_of(partition_id: int, extents: Iterable[Extent]) -> list[tuple[Any, ...]]:
    return [
        (partition_id, extent.base_offset, extent.next_offset, extent.object_id, extent.byte_offset,
         extent.size_bytes, extent.max_timestamp, extent.append_time_ms, extent.layout)
        for extent in extents
    ]  # fmt: skip


# Statements for the transactions of diskless partitions, open or aborted.
#
# An open transaction is stored in the row of its producer. An aborted one has a row of its own,
# with the offset of its marker, as in a segment's transaction index. This row also has the last
# stable offset at the time of the marker. All transactions below it had ended by then, so a reader
# of lower offsets needs no later row.
#
# Source: Kafka's `AbortedTxn` and `TransactionIndex`.


_open = Each(
    "rows",
    "SELECT k.place, s.producer_id, s.txn_first_offset FROM unnest($1::bigint[], $2::int[])"
    " AS k (partition_id, place) JOIN diskless_producers s ON s.partition_id = k.partition_id"
    " WHERE s.txn_first_offset >= 0",
    sqlite="SELECT $2, producer_id, txn_first_offset FROM diskless_producers"
    " WHERE partition_id = $1 AND txn_first_offset >= 0",
)
insert_aborted = Each(
    "changed",
    "INSERT INTO diskless_aborted (partition_id, last_offset, producer_id, first_offset,"
    " last_stable_offset) SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[],"
    " $4::bigint[], $5::bigint[])",
    sqlite="INSERT INTO diskless_aborted VALUES ($1, $2, $3, $4, $5)",
)


_aborted_from: Final = rows(
    f"SELECT {ROW}, a.producer_id, a.first_offset, a.last_offset,"  # noqa: S608
    " a.last_stable_offset FROM diskless_partitions p"
    " LEFT JOIN diskless_aborted a ON a.partition_id = p.partition_id AND a.last_offset >= $3"
    " WHERE p.topic_id = $1 AND p.number = $2 ORDER BY a.last_offset LIMIT $4"
)
"""Reads a partition's row and its aborted transactions in one snapshot.

With two statements, a transaction that is aborted between them would be missing from both results.
"""

drop_below = changed("DELETE FROM diskless_aborted WHERE partition_id = $1 AND last_offset < $2")
drop_aborted = changed(
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
    found = yield _aborted_from(*key, offset, limit)
    row = PartitionRow._make(found[0][:8]) if found else EMPTY
    transactions = tuple(
        [AbortedTransaction._make(found_row[8:]) for found_row in found if found_row[8] is not None]
    )
    complete_to = transactions[-1].last_stable_offset if len(transactions) == limit else None
    return Aborted(transactions, row.watermarks, complete_to)


def aborted_rows_of(
    partition_id: int, transactions: Iterable[AbortedTransaction]
) -> list[tuple[int, ...]]:
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


_REQUEST: Final = "SELECT topic_id, switch_id, broker_id, incarnation FROM diskless_switches"
_migrations_lock = row(f"{_REQUEST} WHERE topic_id = $1 FOR UPDATE")
_requests = rows(_REQUEST)
write_request = changed("INSERT INTO diskless_switches VALUES ($1, $2, $3, $4)")
delete_request = changed(
    "DELETE FROM diskless_switches WHERE topic_id = $1",
    sqlite=(
        "DELETE FROM diskless_switch_shares WHERE topic_id = $1",
        "DELETE FROM diskless_switches WHERE topic_id = $1",
    ),
)
"""Deletes a topic's request and its participants."""

_running_shares = rows(
    "SELECT topic_id, broker_id, incarnation, state, reason FROM diskless_switch_shares"
    " ORDER BY topic_id, broker_id"
)
_participants = rows(
    "SELECT broker_id, incarnation, state, reason, partitions FROM diskless_switch_shares"
    " WHERE topic_id = $1 ORDER BY broker_id"
)
_write_participant = changed(
    "INSERT INTO diskless_switch_shares VALUES ($1, $2, $3, $4, $5, $6)"
    " ON CONFLICT (topic_id, broker_id) DO UPDATE SET incarnation = excluded.incarnation,"
    " state = excluded.state, reason = excluded.reason, partitions = excluded.partitions"
)


def lock_request(topic_id: UUID) -> Operation[MigrationRequest | None]:
    found = yield _migrations_lock(topic_id)
    return None if found is None else _request(found)


def running() -> Operation[list[RunningMigration]]:
    participants = defaultdict(list)
    for topic_id, *participant in (yield _running_shares()):
        participants[uuid_of(topic_id)].append(_participant(*participant))
    requests = map(_request, (yield _requests()))
    return [
        RunningMigration(request, tuple(participants[request.topic_id])) for request in requests
    ]


def participants(topic_id: UUID) -> Operation[list[MigrationParticipant]]:
    return [_participant(*found) for found in (yield _participants(topic_id))]


def write_participant(topic_id: UUID, participant: MigrationParticipant) -> Call:
    partitions = encode_partitions(participant.partitions)
    return _write_participant(
        topic_id,
        participant.broker_id,
        participant.incarnation,
        participant.state,
        participant.reason,
        partitions,
    )


def _request(found: Any) -> MigrationRequest:
    topic_id, migration_id, broker_id, incarnation = found
    return MigrationRequest(
        uuid_of(topic_id), uuid_of(migration_id), broker_id, uuid_of(incarnation)
    )


def _participant(
    broker_id: int, incarnation: Any, state: Any, reason: str, partitions: bytes | None = None
) -> MigrationParticipant:
    return MigrationParticipant(
        broker_id=broker_id,
        incarnation=uuid_of(incarnation),
        state=state,
        reason=reason,
        partitions=() if partitions is None else decode_partitions(partitions),
    )
