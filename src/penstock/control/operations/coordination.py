"""Methods of the control plane for group offsets and the records of coordinators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.base.errors import BugError, PenstockError
from penstock.base.system import Randomness
from penstock.control.drivers.statements import (
    Again,
    Each,
    Lock,
    Operation,
    OverDatabase,
    Rows,
    changed,
    operation,
    query,
    rows,
    uuid_of,
    value,
)
from penstock.control.values.coordination import (
    GROUP_MEMBER,
    KEY_ROW,
    TRANSACTION,
    CoordinationRecord,
    OffsetsEnd,
    OpenTransaction,
    RecordChange,
    RecordKey,
    SavedRecords,
    producer_of_group_row,
)
from penstock.control.values.errors import (
    NotInTransaction,
    StaleProducerEpoch,
    StaleRecord,
    TooLarge,
)
from penstock.control.values.topics import (
    OFFSETS_PER_CALL_MAX,
    CommittedOffset,
    GroupCommit,
    StableOffsets,
)

# Statements for the table of coordinators' records.
#
# Keys and members are stored as bytes, because PostgreSQL's text cannot hold NUL characters.


keys = rows("SELECT DISTINCT key FROM coordination_records WHERE kind = $1 ORDER BY key")
read_records = Each(
    "rows",
    "SELECT key, member, version, value FROM coordination_records"
    " WHERE kind = $2 AND key = ANY($1::bytea[])",
    sqlite="SELECT key, member, version, value FROM coordination_records"
    " WHERE kind = $2 AND key = $1",
)
lock = Each(
    "rows",
    "SELECT r.kind, r.key, r.version FROM coordination_records r"
    " JOIN unnest($1::text[], $2::bytea[]) AS n (kind, key) USING (kind, key)"
    " WHERE r.member = '' ORDER BY r.kind, r.key FOR UPDATE OF r",
    sqlite="SELECT kind, key, version FROM coordination_records"
    " WHERE kind = $1 AND key = $2 AND member = x''",
)
"""Locks and returns the keys' own rows, whose member is empty."""
lock_member = value(
    "SELECT value FROM coordination_records WHERE kind = $1 AND key = $2 AND member = $3 FOR UPDATE"
)
write_records = Each(
    "changed",
    "INSERT INTO coordination_records AS r SELECT n.kind, n.key, n.member,"
    " CASE n.expected WHEN 0 THEN $6 ELSE n.expected END, n.value"
    " FROM unnest($1::text[], $2::bytea[], $3::bytea[], $4::bigint[], $5::bytea[])"
    " AS n (kind, key, member, expected, value)"
    " ON CONFLICT (kind, key, member) DO UPDATE SET version = $6, value = excluded.value"
    " WHERE r.member <> '' OR r.version = excluded.version",
    sqlite="INSERT INTO coordination_records VALUES"
    " ($1, $2, $3, CASE $4 WHEN 0 THEN $6 ELSE $4 END, $5)"
    " ON CONFLICT (kind, key, member) DO UPDATE SET version = $6, value = excluded.value"
    " WHERE member <> x'' OR version = excluded.version",
)
"""Stores rows at one new version. The own row of a key must be new, or at the expected version."""
delete_records = Each(
    "changed",
    "DELETE FROM coordination_records r"
    " USING unnest($1::text[], $2::bytea[], $3::bytea[]) AS n (kind, key, member)"
    " WHERE (r.kind, r.key, r.member) = (n.kind, n.key, n.member)",
    sqlite="DELETE FROM coordination_records WHERE kind = $1 AND key = $2 AND member = $3",
)


def record_of(found: Any) -> CoordinationRecord:
    key, member, version, value = found
    return CoordinationRecord(
        key=key.decode(), member=member.decode(), version=version, value=value
    )


# Statements for the table of groups' offsets.
#
# Metadata is stored as bytes, because PostgreSQL's text cannot hold NUL characters.


_COLUMNS: Final = (
    "topic, number, topic_id, committed_offset, leader_epoch, metadata, commit_timestamp_ms,"
    " expire_timestamp_ms"
)
_PENDING: Final = "topic, number, NULL, 0, 0, NULL, 0, NULL"
_NOT_PENDING: Final = (
    "NOT EXISTS (SELECT 1 FROM pending_offsets p WHERE p.group_id = group_offsets.group_id"
    " AND p.topic = group_offsets.topic AND p.number = group_offsets.number)"
)

read_renewed = Each(
    "rows",
    "",
    sqlite="SELECT name, topic_id FROM topics WHERE name = $1 AND topic_id <> $2",
)
"""Returns (name, id) of topics that have these names and other ids.

For SQLite alone: PostgreSQL's `write` checks ids itself.
"""
_OVERTAKEN: Final = (
    "UPDATE pending_offsets p SET overtaken = true"
    " FROM unnest($1::text[], $2::text[], $3::int[], $4::uuid[]) AS n (group_id, topic, number, id)"
    " WHERE EXISTS (SELECT 1 FROM pending_offsets WHERE group_id = ANY($1::text[]))"
    " AND p.group_id = n.group_id AND p.topic = n.topic AND p.number = n.number"
    " AND p.topic_id = n.id RETURNING 1"
)
_REPLACE: Final = (
    " ON CONFLICT (group_id, topic, number) DO UPDATE SET topic_id = excluded.topic_id,"
    " committed_offset = excluded.committed_offset, leader_epoch = excluded.leader_epoch,"
    " metadata = excluded.metadata, commit_timestamp_ms = excluded.commit_timestamp_ms,"
    " expire_timestamp_ms = excluded.expire_timestamp_ms"
)
_WRITE: Final = (
    f"INSERT INTO group_offsets (group_id, {_COLUMNS})"  # noqa: S608  (fixed)
    " SELECT new.* FROM unnest($1::text[], $2::text[], $3::int[], $4::uuid[], $5::bigint[],"
    " $6::int[], $7::bytea[], $8::bigint[], $9::bigint[])"
    " AS new (group_id, topic, number, topic_id)"
    " WHERE {condition} AND NOT EXISTS (SELECT 1 FROM topics"
    "  WHERE topics.name = new.topic AND topics.topic_id <> new.topic_id)" + _REPLACE
)
_WRITE_SQLITE: Final = (
    "INSERT INTO group_offsets VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)" + _REPLACE  # noqa: S608  (fixed)
)
"""Unlike INSERT OR REPLACE, this leaves the pages of the index by topic as they are."""

any_pending = Each("rows", "", sqlite="SELECT 1 FROM pending_offsets LIMIT $1")
overtake = Each(
    "changed",
    "",
    sqlite="UPDATE pending_offsets SET overtaken = 1 WHERE group_id = $1 AND topic = $2"
    " AND number = $3 AND topic_id = $4",
)
"""`any_pending` and `overtake` are for SQLite alone: PostgreSQL's `write` includes them."""
write_offsets = Each(
    "changed",
    f"WITH overtaken AS ({_OVERTAKEN}) "  # noqa: S608  (fixed)
    + _WRITE.format(condition="(SELECT count(*) FROM overtaken) >= 0"),
    sqlite=_WRITE_SQLITE,
)
"""Stores offsets committed outside of transactions, which supersede pending offsets.

PostgreSQL locks the pending rows first, in the order in which a completed transaction locks them.
"""
overtake_older = Each(
    "changed",
    "UPDATE pending_offsets p SET overtaken = true"
    " FROM unnest($1::text[], $2::text[], $3::int[], $4::uuid[], $5::bigint[])"
    " AS n (group_id, topic, number, id, ordinal)"
    " WHERE p.group_id = n.group_id AND p.topic = n.topic AND p.number = n.number"
    " AND p.topic_id = n.id AND p.ordinal < n.ordinal",
    sqlite="UPDATE pending_offsets SET overtaken = 1 WHERE group_id = $1 AND topic = $2"
    " AND number = $3 AND topic_id = $4 AND ordinal < $5",
)
write_completed = Each("changed", _WRITE.format(condition="true"), sqlite=_WRITE_SQLITE)
read_all = rows(f"SELECT {_COLUMNS} FROM group_offsets WHERE group_id = $1")  # noqa: S608
read_offsets = Each(
    "rows",
    f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " JOIN unnest($1::text[], $2::int[]) AS n (topic, number) USING (topic, number)"
    " WHERE group_id = $3",
    sqlite=f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " WHERE group_id = $3 AND topic = $1 AND number = $2",
)
read_stable = Each(
    "rows",
    f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " JOIN unnest($1::text[], $2::int[]) AS n (topic, number) USING (topic, number)"
    f" WHERE group_id = $3 UNION ALL SELECT {_PENDING} FROM pending_offsets"
    " JOIN unnest($1::text[], $2::int[]) AS n (topic, number) USING (topic, number)"
    " WHERE group_id = $3",
    sqlite=f"SELECT {_COLUMNS} FROM group_offsets"  # noqa: S608  (fixed)
    " WHERE group_id = $3 AND topic = $1 AND number = $2"
    f" UNION ALL SELECT {_PENDING} FROM pending_offsets"
    " WHERE group_id = $3 AND topic = $1 AND number = $2",
)
"""Returns committed offsets, and for each partition with pending offsets a row without topic id."""
read_all_stable = rows(
    f"SELECT {_COLUMNS} FROM group_offsets WHERE group_id = $1"  # noqa: S608  (fixed)
    f" UNION ALL SELECT {_PENDING} FROM pending_offsets WHERE group_id = $1"
)
read_group_ids = rows(
    "SELECT group_id FROM group_offsets UNION SELECT group_id FROM pending_offsets"
    " ORDER BY group_id"
)
delete_offsets = Each(
    "changed",
    "DELETE FROM group_offsets WHERE group_id = $3"
    " AND (topic, number) IN (SELECT * FROM unnest($1::text[], $2::int[]))",
    sqlite="DELETE FROM group_offsets WHERE group_id = $3 AND topic = $1 AND number = $2",
)
delete_all_offsets = Each(
    "changed",
    "DELETE FROM group_offsets WHERE group_id = ANY($1::text[])",
    sqlite="DELETE FROM group_offsets WHERE group_id = $1",
)
having_offsets = Each(
    "rows",
    "SELECT g FROM unnest($1::text[]) AS g"
    " WHERE EXISTS (SELECT 1 FROM group_offsets WHERE group_id = g)"
    " OR EXISTS (SELECT 1 FROM pending_offsets WHERE group_id = g)",
    sqlite="SELECT $1 WHERE EXISTS (SELECT 1 FROM group_offsets WHERE group_id = $1)"
    " OR EXISTS (SELECT 1 FROM pending_offsets WHERE group_id = $1)",
)
expire = changed(
    "DELETE FROM group_offsets WHERE (group_id, topic, number) IN"  # noqa: S608  (fixed)
    " (WITH old AS MATERIALIZED (SELECT group_id, topic, number FROM group_offsets"
    f" WHERE expire_timestamp_ms <= $1 AND {_NOT_PENDING} LIMIT $2 FOR UPDATE SKIP LOCKED)"
    " SELECT group_id, topic, number FROM old)"
)
expire_of = changed(
    "DELETE FROM group_offsets WHERE group_id = $1 AND (topic, number) IN"  # noqa: S608  (fixed)
    " (WITH old AS MATERIALIZED (SELECT topic, number FROM group_offsets"
    " WHERE group_id = $1 AND expire_timestamp_ms IS NULL AND commit_timestamp_ms <= $2"
    f" AND {_NOT_PENDING} LIMIT $3 FOR UPDATE SKIP LOCKED) SELECT topic, number FROM old)"
)


def values_of(group_id: str, one: CommittedOffset) -> tuple[Any, ...]:
    return (
        group_id,
        one.topic,
        one.partition,
        one.topic_id,
        one.offset,
        one.leader_epoch,
        one.metadata.encode(),
        one.commit_timestamp_ms,
        one.expire_timestamp_ms,
    )


def offset_of(found: Any) -> CommittedOffset:
    topic, number, topic_id, offset, leader_epoch, metadata, committed_ms, expires_ms = found
    return CommittedOffset(
        topic_id=uuid_of(topic_id),
        topic=topic,
        partition=number,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata.decode(),
        commit_timestamp_ms=committed_ms,
        expire_timestamp_ms=expires_ms,
    )


# Statements for the table of pending offsets.
#
# Transactional ids are stored as bytes, like the keys of coordinators' records.


_STAGED: Final = (
    "transactional_id, ordinal, overtaken, group_id, topic, number, topic_id, committed_offset,"
    " leader_epoch, metadata, commit_timestamp_ms"
)
_NEXT: Final = (
    "(SELECT coalesce(max(ordinal), 0) + 1 FROM pending_offsets p"
    " WHERE p.group_id = $8 AND p.topic = {topic} AND p.number = {number})"
)

write_pending = Each(
    "changed",
    "INSERT INTO pending_offsets (group_id, transactional_id, topic, number, topic_id,"  # noqa: S608
    " committed_offset, leader_epoch, metadata, commit_timestamp_ms, ordinal, overtaken)"
    f" SELECT $8, $9::bytea, new.*, {_NEXT.format(topic='new.topic', number='new.number')}, false"
    " FROM unnest($1::text[], $2::int[], $3::uuid[], $4::bigint[], $5::int[], $6::bytea[],"
    " $7::bigint[]) AS new (topic, number, topic_id)"
    " WHERE NOT EXISTS (SELECT 1 FROM topics"
    "  WHERE topics.name = new.topic AND topics.topic_id <> new.topic_id)"
    " ON CONFLICT (group_id, topic, number, transactional_id) DO UPDATE"
    " SET topic_id = excluded.topic_id, committed_offset = excluded.committed_offset,"
    " leader_epoch = excluded.leader_epoch, metadata = excluded.metadata,"
    " commit_timestamp_ms = excluded.commit_timestamp_ms, ordinal = excluded.ordinal,"
    " overtaken = false",
    sqlite="INSERT OR REPLACE INTO pending_offsets (group_id, transactional_id, topic, number,"  # noqa: S608
    " topic_id, committed_offset, leader_epoch, metadata, commit_timestamp_ms, ordinal, overtaken)"
    f" VALUES ($8, $9, $1, $2, $3, $4, $5, $6, $7, {_NEXT.format(topic='$1', number='$2')}, 0)",
)
"""Stages offsets. Concurrent transactions may give the offsets of a partition the same ordinal."""
take = Each(
    "rows",
    f"DELETE FROM pending_offsets WHERE transactional_id = ANY($1::bytea[]) RETURNING {_STAGED}",  # noqa: S608
    sqlite=f"SELECT {_STAGED} FROM pending_offsets WHERE transactional_id = $1",  # noqa: S608
)
some_pending = Each(
    "rows", "", sqlite="SELECT 1 FROM pending_offsets WHERE transactional_id = $1 LIMIT $2"
)
drop = Each("changed", "", sqlite="DELETE FROM pending_offsets WHERE transactional_id = $1")
"""Deletes the rows that `take` has read, in SQLite. PostgreSQL's `take` deletes them itself."""
delete_pending = Each(
    "changed",
    "DELETE FROM pending_offsets WHERE group_id = $3"
    " AND (topic, number) IN (SELECT * FROM unnest($1::text[], $2::int[]))",
    sqlite="DELETE FROM pending_offsets WHERE group_id = $3 AND topic = $1 AND number = $2",
)
delete_all_pending = Each(
    "changed",
    "DELETE FROM pending_offsets WHERE group_id = ANY($1::text[])",
    sqlite="DELETE FROM pending_offsets WHERE group_id = $1",
)


class PendingOffset(NamedTuple):
    """An offset that a group commits in an open transaction, as stored.

    Has the columns of its row from the group's id on.
    """

    group_id: str
    topic: str
    partition: int
    topic_id: Any
    offset: int
    leader_epoch: int
    metadata: bytes
    commit_timestamp_ms: int


def pending_values_of(one: CommittedOffset) -> tuple[Any, ...]:
    return (
        one.topic,
        one.partition,
        one.topic_id,
        one.offset,
        one.leader_epoch,
        one.metadata.encode(),
        one.commit_timestamp_ms,
    )


# Methods of the control plane for the committed and pending offsets of consumer groups.
#
# Storing offsets locks topics and brokers. If the caller gives a cluster epoch, it must be the
# current one. A paused coordinator therefore writes nothing after its groups have moved to another
# broker.
#
# **Pending offsets** belong to open transactions. They are stored beside the committed offsets
# until the transaction ends. The transaction's record has a row for each group in it, with the
# producer's id and epoch. Staging offsets locks that row. The save that ends the transaction
# deletes the row and commits or drops the staged offsets, in the same database transaction. No
# offset can therefore be staged after the end.
#
# **Order.** The newest offset of a partition wins, as in Kafka. Ordinals give the order of the
# offsets of transactions. A commit outside of transactions supersedes all earlier pending offsets.
#
# Source: Kafka's `OffsetMetadataManager`; KIP-98, KIP-447, KIP-890.


class GroupOffsets(OverDatabase):
    """Methods of `ControlPlane` for groups' offsets.

    An argument `cluster_epoch` is that of the image by which the caller coordinates the group.
    """

    async def commit_offsets(
        self,
        *,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        cluster_epoch: int | None = None,
    ) -> None:
        """Store a group's offsets, as `commit_offsets_of` does."""
        await self.commit_offsets_of([(group_id, offsets)], cluster_epoch=cluster_epoch)

    async def commit_offsets_of(
        self,
        commits: Sequence[GroupCommit],
        *,
        cluster_epoch: int | None = None,
        synced: bool = True,
    ) -> None:
        """Store the offsets of groups, all or none. The newest commit of a partition wins.

        Offsets of an earlier topic with the same name are ignored. Without `synced`, a loss of
        power may undo the commits, as in `Database.change`.

        Raises:
            TooLarge: more than `OFFSETS_PER_CALL_MAX` in one call.
            StaleClusterEpoch: brokers were added or removed since the caller's image.
        """
        count = sum(len(offsets) for _, offsets in commits)
        _check_count(count)

        def commit() -> Operation[None]:
            committed = yield from _newest(commits)
            rows = [values_of(group_id, offset) for group_id, offset in committed]
            if (yield any_pending([(1,)])):
                yield overtake([row[:4] for row in rows])
            yield write_offsets(rows)

        await self._database.change(
            commit, lock=Lock.TOPICS, cluster_epoch=cluster_epoch, rows=count, synced=synced
        )

    @query
    def committed_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> Operation[list[CommittedOffset]]:
        """Return a group's offsets, by topic and partition.

        None for `partitions` means all partitions.
        """
        if partitions is None:
            found = yield read_all(group_id)
        else:
            found = yield read_offsets(set(partitions), group_id)
        return sorted(map(offset_of, found), key=lambda one: (one.topic, one.partition))

    async def stage_offsets(
        self,
        *,
        transaction: OpenTransaction,
        group_id: str,
        offsets: Sequence[CommittedOffset],
        cluster_epoch: int | None = None,
    ) -> None:
        """Store offsets that a group commits in an open transaction, all or none.

        They are invisible until the save that ends the transaction
        (`RecordChange.completes_offsets`). That save waits for this call. The offsets' expiry is
        ignored. Offsets of an earlier topic with the same name are ignored, too.

        Raises:
            NotInTransaction: the transaction's record has no row of this group.
            StaleProducerEpoch: the row has a newer epoch of the producer.
            TooLarge, StaleClusterEpoch: as in `commit_offsets`.
        """
        _check_count(len(offsets))
        key = transaction.transactional_id.encode()

        def stage() -> Operation[None]:
            row = yield lock_member(TRANSACTION, key, (GROUP_MEMBER + group_id).encode())
            _check_member(transaction, group_id, row)
            newest = yield from _newest([(group_id, offsets)])
            yield write_pending([pending_values_of(one) for _, one in newest], group_id, key)

        await self._database.change(
            stage, lock=Lock.TOPICS, cluster_epoch=cluster_epoch, rows=len(offsets)
        )

    @query
    def stable_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> Operation[StableOffsets]:
        """Return `committed_offsets`, and the partitions with pending offsets, in one snapshot."""
        if partitions is None:
            found = yield read_all_stable(group_id)
        else:
            found = yield read_stable(set(partitions), group_id)
        committed = [offset_of(row) for row in found if row[2] is not None]
        return StableOffsets(
            committed=sorted(committed, key=lambda one: (one.topic, one.partition)),
            unstable=frozenset([(row[0], row[1]) for row in found if row[2] is None]),
        )

    async def delete_offsets(
        self,
        *,
        group_id: str,
        partitions: Sequence[tuple[str, int]],
        cluster_epoch: int | None = None,
    ) -> None:
        """Delete a group's offsets in the named partitions, including pending offsets.

        Raises:
            TooLarge, StaleClusterEpoch: as in `commit_offsets`.
        """
        _check_count(len(partitions))

        def delete() -> Operation[None]:
            yield delete_pending(partitions, group_id)
            yield delete_offsets(partitions, group_id)

        await self._database.change(delete, lock=Lock.TOPICS, cluster_epoch=cluster_epoch)

    @query
    def offset_group_ids(self) -> Operation[list[str]]:
        """Return the ids of all groups with committed or pending offsets, sorted."""
        return [group_id for (group_id,) in (yield read_group_ids())]

    @query
    def groups_with_offsets(self, group_ids: Sequence[str]) -> Operation[list[str]]:
        """Return those of `group_ids` that have committed or pending offsets."""
        return [group_id for (group_id,) in (yield having_offsets(_texts(group_ids)))]

    @operation()
    def expire_offsets(self, *, now_ms: int, limit: int) -> Operation[int]:
        """Delete up to `limit` offsets whose own expiry has passed; return their number.

        Skips partitions with pending offsets of the group.
        """
        count: int = yield expire(now_ms, limit)
        return count

    async def expire_offsets_of(
        self,
        *,
        group_id: str,
        committed_by_ms: int,
        limit: int,
        cluster_epoch: int | None = None,
    ) -> int:
        """Delete a group's offsets that have no own expiry and are old; return their number.

        Deletes up to `limit` offsets that were committed at or before `committed_by_ms`. Skips
        partitions with pending offsets of the group.
        """

        def expire() -> Operation[int]:
            count: int = yield expire_of(group_id, committed_by_ms, limit)
            return count

        return await self._database.change(expire, lock=Lock.TOPICS, cluster_epoch=cluster_epoch)


def delete_all(group_ids: Iterable[str]) -> Operation[None]:
    texts = _texts(group_ids)
    yield delete_all_pending(texts)
    yield delete_all_offsets(texts)


def complete(ends: Mapping[str, OffsetsEnd]) -> Operation[None]:
    """Commit or drop the pending offsets of transactions. `ends` is by transactional id.

    The caller has deleted the groups' rows from the transactions' records. `stage_offsets`
    therefore rejects further offsets of these transactions.
    """
    keys = [(key.encode(),) for key in ends]
    found = yield take(keys)
    if not found:
        return
    yield drop(keys)
    committed: dict[tuple[str, str, int], tuple[int, PendingOffset]] = {}
    for transactional_id, ordinal, overtaken, *values in found:
        one = PendingOffset(*values)
        place = one.group_id, one.topic, one.partition
        if (
            ends[transactional_id.decode()] == "commit"
            and not overtaken
            and ordinal >= committed.get(place, (0,))[0]
        ):
            committed[place] = ordinal, one
    ordered = [committed[place] for place in sorted(committed)]
    yield overtake_older([(*offset[:4], ordinal) for ordinal, offset in ordered])
    yield write_completed([(*offset, None) for _, offset in ordered])


def _check_count(count: int) -> None:
    if count > OFFSETS_PER_CALL_MAX:
        raise TooLarge(f"{count} offsets in one call, the limit is {OFFSETS_PER_CALL_MAX}")


def _newest(commits: Sequence[GroupCommit]) -> Operation[list[tuple[str, CommittedOffset]]]:
    """Return the last offset of each group and partition, without those of deleted topics.

    They are in lock order, each with its group's id.
    """
    last = {
        (group_id, offset.topic, offset.partition): offset
        for group_id, offsets in commits
        for offset in offsets
    }
    renewed = yield read_renewed({(offset.topic, offset.topic_id) for offset in last.values()})
    ids = {name: uuid_of(topic_id) for name, topic_id in renewed}
    return [
        (group_id, offset)
        for (group_id, name, _), offset in sorted(last.items())
        if name not in ids or ids[name] == offset.topic_id
    ]


def _check_member(transaction: OpenTransaction, group_id: str, row: bytes | None) -> None:
    if row is None:
        raise NotInTransaction(transaction.transactional_id, group_id)
    producer_id, producer_epoch = producer_of_group_row(row)
    if producer_id != transaction.producer_id or producer_epoch < transaction.producer_epoch:
        raise NotInTransaction(transaction.transactional_id, group_id)
    if producer_epoch > transaction.producer_epoch:
        raise StaleProducerEpoch(
            transaction.transactional_id, transaction.producer_epoch, producer_epoch
        )


def _texts(group_ids: Iterable[str]) -> list[tuple[str]]:
    """Return group ids without those that contain NUL, which a text column cannot hold."""
    return [(group_id,) for group_id in group_ids if "\0" not in group_id]


RECORD_BYTES_MAX: Final = 128 << 20
"""Bytes of one row that a coordinator saves."""

_VERSION_BITS: Final = 62
_SMALL_BYTES_MAX: Final = 65_536
_COUNTED_MAX: Final = 100
"""Number of rows up to which the offsets of ended transactions are counted; more are not few."""


class CoordinationRecords(OverDatabase):
    """Methods of `ControlPlane` for coordinators' records."""

    _randomness: Randomness

    @query
    def record_keys(self, kind: str) -> Operation[list[str]]:
        """Return the keys that have records of a kind, sorted."""
        return [key.decode() for (key,) in (yield keys(kind))]

    @query
    def records(self, kind: str, keys: Sequence[str]) -> Operation[list[CoordinationRecord]]:
        """Return all records of a kind with one of `keys`, ordered by key and member."""
        found = yield read_records([(key.encode(),) for key in keys], kind)
        return sorted(map(record_of, found), key=lambda row: (row.key, row.member))

    async def save_records(
        self, changes: Sequence[RecordChange], *, cluster_epoch: int | None = None
    ) -> SavedRecords:
        """Apply changes in one transaction, at most one change per key.

        A change is rejected on its own if its key is at an unexpected version, or if a row exceeds
        `RECORD_BYTES_MAX`. The result then has `StaleRecord` or `TooLarge` for this key.
        `cluster_epoch` is that of the image by which the caller owns the keys.

        Raises:
            StaleClusterEpoch: brokers were added or removed since that image; nothing is stored.
        """
        version = self._randomness.bits(_VERSION_BITS) + 1
        refused = await self._database.change(
            partial(_save, changes, version=version),
            lock=Lock.TOPICS,
            cluster_epoch=cluster_epoch,
            rows=_rows(changes),
        )
        return SavedRecords(version=version, refused=refused)


def _rows(changes: Sequence[RecordChange]) -> Rows:
    if any(change.deletes_offsets for change in changes):
        return None
    values = [content for change in changes for content in change.rows.values()]
    if sum(map(len, filter(None, values))) > _SMALL_BYTES_MAX:
        return None
    ends = [(change.key.encode(),) for change in changes if change.completes_offsets is not None]
    if not ends or len(values) > _COUNTED_MAX:
        return len(values)

    def count() -> Operation[int]:
        return len(values) + len((yield some_pending(ends, _COUNTED_MAX)))

    return count


def _save(
    changes: Sequence[RecordChange], *, version: int
) -> Operation[dict[RecordKey, PenstockError]]:
    record_keys = sorted((change.kind, change.key.encode()) for change in changes)
    found: dict[RecordKey, int] = {}
    for kind, key, known in (yield lock(record_keys)):
        found[kind, key.decode()] = known
    refused: dict[RecordKey, PenstockError] = {}
    for change in changes:
        reason = _refusal(change, found.get(change.record_key, 0))
        if reason is not None:
            refused[change.record_key] = reason
    stored = [change for change in changes if change.record_key not in refused]
    written: list[tuple[str, bytes, bytes, int, bytes]] = []
    deleted: list[tuple[str, bytes, bytes]] = []
    for change in stored:
        kind, key = change.kind, change.key.encode()
        for member, content in change.rows.items():
            if content is None:
                deleted.append((kind, key, member.encode()))
            else:
                expected = 0 if member else change.expected_version
                written.append((kind, key, member.encode(), expected, content))
    if (yield write_records(written, version)) != len(written):
        raise Again("another coordinator added the same records at the same time")
    yield delete_records(deleted)
    yield from delete_all([change.key for change in stored if change.deletes_offsets])
    yield from complete(
        {
            change.key: change.completes_offsets
            for change in stored
            if change.completes_offsets is not None and _leaves_groups(change)
        }
    )
    return refused


def _refusal(change: RecordChange, found: int) -> PenstockError | None:
    """Return why a change is rejected, or None. `found` is the version of its key's own row.

    Raises:
        BugError: the change omits the key's own row, or removes groups from a transaction without
            completing their offsets.
    """
    if change.rows and KEY_ROW not in change.rows:
        raise BugError(f"a change of {change.kind} {change.key!r} leaves out the key's own row")
    if _leaves_groups(change) and change.completes_offsets is None:
        raise BugError(
            f"a change removes groups from transaction {change.key!r} without completing their"
            " offsets"
        )
    if found != change.expected_version:
        return StaleRecord(change.kind, change.key, change.expected_version, found)
    largest = max(
        (len(content) for content in change.rows.values() if content is not None), default=0
    )
    if largest > RECORD_BYTES_MAX:
        return TooLarge(
            f"a record of {change.kind} {change.key!r} has {largest} bytes, "
            f"the limit is {RECORD_BYTES_MAX}"
        )
    return None


def _leaves_groups(change: RecordChange) -> bool:
    return change.kind == TRANSACTION and any(
        content is None and member.startswith(GROUP_MEMBER)
        for member, content in change.rows.items()
    )
