"""Methods of the control plane for the committed and pending offsets of consumer groups.

Storing offsets locks topics and brokers. If the caller gives a cluster epoch, it must be the
current one. A paused coordinator therefore writes nothing after its groups have moved to another
broker.

**Pending offsets** belong to open transactions. They are stored beside the committed offsets until
the transaction ends. The transaction's record has a row for each group in it, with the producer's
id and epoch. Staging offsets locks that row. The save that ends the transaction deletes the row and
commits or drops the staged offsets, in the same database transaction. No offset can therefore be
staged after the end.

**Order.** The newest offset of a partition wins, as in Kafka. Ordinals give the order of the
offsets of transactions. A commit outside of transactions supersedes all earlier pending offsets.

Source: Kafka's `OffsetMetadataManager`; KIP-98, KIP-447, KIP-890.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.control.coordination import statements as records
from penstock.control.coordination.values import (
    GROUP_MEMBER,
    TRANSACTION,
    OffsetsEnd,
    OpenTransaction,
    producer_of_group_row,
)
from penstock.control.drivers.statements import (
    Lock,
    Operation,
    OverDatabase,
    operation,
    query,
    uuid_of,
)
from penstock.control.errors import NotInTransaction, StaleProducerEpoch, TooLarge
from penstock.control.groups import pending_statements, statements
from penstock.control.values import CommittedOffset, StableOffsets

OFFSETS_PER_CALL_MAX: Final = 100_000
"""Offsets that one call stores or deletes."""


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
        """Store a group's offsets, all or none. The newest commit of a partition wins.

        Offsets of an earlier topic with the same name are ignored.

        Raises:
            TooLarge: more than `OFFSETS_PER_CALL_MAX` in one call.
            StaleClusterEpoch: brokers were added or removed since the caller's image.
        """
        _check_count(len(offsets))

        def commit() -> Operation[None]:
            committed = yield from _newest(offsets)
            rows = [statements.values_of(group_id, offset) for offset in committed]
            if (yield statements.having_pending([(group_id,)])):
                yield statements.overtake([row[:4] for row in rows])
            yield statements.write(rows)

        await self._database.change(
            commit, lock=Lock.TOPICS, cluster_epoch=cluster_epoch, rows=len(offsets)
        )

    @query
    def committed_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> Operation[list[CommittedOffset]]:
        """Return a group's offsets, by topic and partition.

        None for `partitions` means all partitions.
        """
        if partitions is None:
            found = yield statements.read_all(group_id)
        else:
            found = yield statements.read(set(partitions), group_id)
        return sorted(map(statements.offset_of, found), key=lambda one: (one.topic, one.partition))

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
            row = yield records.lock_member(TRANSACTION, key, (GROUP_MEMBER + group_id).encode())
            _check_member(transaction, group_id, row)
            rows = map(pending_statements.values_of, (yield from _newest(offsets)))
            yield pending_statements.write(rows, group_id, key)

        await self._database.change(
            stage, lock=Lock.TOPICS, cluster_epoch=cluster_epoch, rows=len(offsets)
        )

    @query
    def stable_offsets(
        self, group_id: str, partitions: Sequence[tuple[str, int]] | None
    ) -> Operation[StableOffsets]:
        """Return `committed_offsets`, and the partitions with pending offsets, in one snapshot."""
        if partitions is None:
            found = yield statements.read_all_stable(group_id)
        else:
            found = yield statements.read_stable(set(partitions), group_id)
        committed = [statements.offset_of(row) for row in found if row[2] is not None]
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
            yield pending_statements.delete(partitions, group_id)
            yield statements.delete(partitions, group_id)

        await self._database.change(delete, lock=Lock.TOPICS, cluster_epoch=cluster_epoch)

    @query
    def offset_group_ids(self) -> Operation[list[str]]:
        """Return the ids of all groups with committed or pending offsets, sorted."""
        return [group_id for (group_id,) in (yield statements.read_group_ids())]

    @query
    def groups_with_offsets(self, group_ids: Sequence[str]) -> Operation[list[str]]:
        """Return those of `group_ids` that have committed or pending offsets."""
        return [group_id for (group_id,) in (yield statements.having_offsets(_texts(group_ids)))]

    @operation()
    def expire_offsets(self, *, now_ms: int, limit: int) -> Operation[int]:
        """Delete up to `limit` offsets whose own expiry has passed; return their number.

        Skips partitions with pending offsets of the group.
        """
        count: int = yield statements.expire(now_ms, limit)
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
            count: int = yield statements.expire_of(group_id, committed_by_ms, limit)
            return count

        return await self._database.change(expire, lock=Lock.TOPICS, cluster_epoch=cluster_epoch)


def delete_all(group_ids: Iterable[str]) -> Operation[None]:
    texts = _texts(group_ids)
    yield pending_statements.delete_all(texts)
    yield statements.delete_all(texts)


def complete(ends: Mapping[str, OffsetsEnd]) -> Operation[None]:
    """Commit or drop the pending offsets of transactions. `ends` is by transactional id.

    The caller has deleted the groups' rows in the transactions' records, so nothing is staged
    meanwhile.
    """
    keys = [(key.encode(),) for key in ends]
    found = yield pending_statements.take(keys)
    if not found:
        return
    yield pending_statements.drop(keys)
    committed: dict[tuple[str, str, int], tuple[int, pending_statements.PendingOffset]] = {}
    for transactional_id, ordinal, overtaken, *values in found:
        one = pending_statements.PendingOffset(*values)
        place = one.group_id, one.topic, one.partition
        if (
            ends[transactional_id.decode()] == "commit"
            and not overtaken
            and ordinal >= committed.get(place, (0,))[0]
        ):
            committed[place] = ordinal, one
    ordered = [committed[place] for place in sorted(committed)]
    yield statements.overtake_older([(*offset[:4], ordinal) for ordinal, offset in ordered])
    yield statements.write_completed([(*offset, None) for _, offset in ordered])


def _check_count(count: int) -> None:
    if count > OFFSETS_PER_CALL_MAX:
        raise TooLarge(f"{count} offsets in one call, the limit is {OFFSETS_PER_CALL_MAX}")


def _newest(offsets: Sequence[CommittedOffset]) -> Operation[list[CommittedOffset]]:
    """Return the last offset of each partition, in lock order, without those of deleted topics."""
    last = {(offset.topic, offset.partition): offset for offset in offsets}
    renewed = yield statements.read_renewed({(offset.topic, offset.topic_id) for offset in offsets})
    ids = {name: uuid_of(topic_id) for name, topic_id in renewed}
    return [
        offset
        for _, offset in sorted(last.items())
        if ids.get(offset.topic, offset.topic_id) == offset.topic_id
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
