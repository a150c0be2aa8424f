"""The operations of groups' offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.control.drivers.statements import Operation, uuid_of
from penstock.control.groups import pending_statements, statements
from penstock.control.values import CommittedOffset, StableOffsets


def commit(group_id: str, offsets: Sequence[CommittedOffset]) -> Operation[None]:
    """Store offsets, of a partition's the newest, but none of an earlier topic of the name.

    They overtake what transactions had brought before.
    """
    committed = yield from newest(offsets)
    rows = [statements.values_of(group_id, one) for one in committed]
    if (yield statements.having_pending([(group_id,)])):
        yield statements.overtake([row[:4] for row in rows])
    yield statements.write(rows)


def newest(offsets: Sequence[CommittedOffset]) -> Operation[list[CommittedOffset]]:
    """The last offset of each partition, but none of an earlier topic of the name.

    In the order of the partitions, so that commits of a group do not deadlock.
    """
    last = {(offset.topic, offset.partition): offset for offset in offsets}
    renewed = yield statements.read_renewed({(offset.topic, offset.topic_id) for offset in offsets})
    ids = {name: uuid_of(topic_id) for name, topic_id in renewed}
    return [
        one for _, one in sorted(last.items()) if ids.get(one.topic, one.topic_id) == one.topic_id
    ]


def read(
    group_id: str, partitions: Sequence[tuple[str, int]] | None
) -> Operation[list[CommittedOffset]]:
    """A group's offsets in some partitions, or in all; by topic and partition."""
    if partitions is None:
        found = yield statements.read_all(group_id)
    else:
        found = yield statements.read(set(partitions), group_id)
    return sorted(map(statements.offset_of, found), key=lambda one: (one.topic, one.partition))


def read_stable(
    group_id: str, partitions: Sequence[tuple[str, int]] | None
) -> Operation[StableOffsets]:
    """As `read`, and in which of the partitions open transactions have brought offsets."""
    if partitions is None:
        found = yield statements.read_all_stable(group_id)
    else:
        found = yield statements.read_stable(set(partitions), group_id)
    committed = [statements.offset_of(one) for one in found if one[2] is not None]
    return StableOffsets(
        committed=sorted(committed, key=lambda one: (one.topic, one.partition)),
        unstable=frozenset([(one[0], one[1]) for one in found if one[2] is None]),
    )


def group_ids() -> Operation[list[str]]:
    """The groups that have an offset, or may get one of an open transaction, in order."""
    return [group_id for (group_id,) in (yield statements.read_group_ids())]


def delete(group_id: str, partitions: Sequence[tuple[str, int]]) -> Operation[None]:
    """Forget offsets, also those that open transactions have brought, which commit none then."""
    yield pending_statements.delete(partitions, group_id)
    yield statements.delete(partitions, group_id)


def delete_all(group_ids: Iterable[str]) -> Operation[None]:
    """Forget all offsets of some groups, also those that open transactions have brought."""
    texts = _texts(group_ids)
    yield pending_statements.delete_all(texts)
    yield statements.delete_all(texts)


def having_offsets(group_ids: Iterable[str]) -> Operation[list[str]]:
    """Those of some groups that have an offset, or may get one of an open transaction."""
    return [group_id for (group_id,) in (yield statements.having_offsets(_texts(group_ids)))]


def _texts(group_ids: Iterable[str]) -> list[tuple[str]]:
    """Ids that a column of text may hold: there are no offsets of the others."""
    return [(group_id,) for group_id in group_ids if "\0" not in group_id]


def expire(now_ms: int, limit: int) -> Operation[int]:
    """Delete expired offsets that nobody is just changing, and no open transaction; how many."""
    count: int = yield statements.expire(now_ms, limit)
    return count


def expire_of(group_id: str, committed_by_ms: int, limit: int) -> Operation[int]:
    """Delete the offsets of a group that are that old and have no expiry of their own; how many.

    Not those that an open transaction changes.
    """
    count: int = yield statements.expire_of(group_id, committed_by_ms, limit)
    return count
