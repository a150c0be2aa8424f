"""Operations on groups' offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.control.drivers.statements import Operation, uuid_of
from penstock.control.groups import pending_statements, statements
from penstock.control.values import CommittedOffset, StableOffsets


def commit(group_id: str, offsets: Sequence[CommittedOffset]) -> Operation[None]:
    """Store the newest offset of each partition, which supersedes pending ones."""
    committed = yield from newest(offsets)
    rows = [statements.values_of(group_id, offset) for offset in committed]
    if (yield statements.having_pending([(group_id,)])):
        yield statements.overtake([row[:4] for row in rows])
    yield statements.write(rows)


def newest(offsets: Sequence[CommittedOffset]) -> Operation[list[CommittedOffset]]:
    """Return the last offset of each partition of an existing topic, in lock order."""
    last = {(offset.topic, offset.partition): offset for offset in offsets}
    renewed = yield statements.read_renewed({(offset.topic, offset.topic_id) for offset in offsets})
    ids = {name: uuid_of(topic_id) for name, topic_id in renewed}
    return [
        offset
        for _, offset in sorted(last.items())
        if ids.get(offset.topic, offset.topic_id) == offset.topic_id
    ]


def read(
    group_id: str, partitions: Sequence[tuple[str, int]] | None
) -> Operation[list[CommittedOffset]]:
    if partitions is None:
        found = yield statements.read_all(group_id)
    else:
        found = yield statements.read(set(partitions), group_id)
    return sorted(map(statements.offset_of, found), key=lambda one: (one.topic, one.partition))


def read_stable(
    group_id: str, partitions: Sequence[tuple[str, int]] | None
) -> Operation[StableOffsets]:
    if partitions is None:
        found = yield statements.read_all_stable(group_id)
    else:
        found = yield statements.read_stable(set(partitions), group_id)
    committed = [statements.offset_of(row) for row in found if row[2] is not None]
    return StableOffsets(
        committed=sorted(committed, key=lambda one: (one.topic, one.partition)),
        unstable=frozenset([(row[0], row[1]) for row in found if row[2] is None]),
    )


def group_ids() -> Operation[list[str]]:
    return [group_id for (group_id,) in (yield statements.read_group_ids())]


def delete(group_id: str, partitions: Sequence[tuple[str, int]]) -> Operation[None]:
    yield pending_statements.delete(partitions, group_id)
    yield statements.delete(partitions, group_id)


def delete_all(group_ids: Iterable[str]) -> Operation[None]:
    texts = _texts(group_ids)
    yield pending_statements.delete_all(texts)
    yield statements.delete_all(texts)


def having_offsets(group_ids: Iterable[str]) -> Operation[list[str]]:
    return [group_id for (group_id,) in (yield statements.having_offsets(_texts(group_ids)))]


def _texts(group_ids: Iterable[str]) -> list[tuple[str]]:
    """Drop ids with NUL, which a text column cannot hold and no group has."""
    return [(group_id,) for group_id in group_ids if "\0" not in group_id]


def expire(now_ms: int, limit: int) -> Operation[int]:
    count: int = yield statements.expire(now_ms, limit)
    return count


def expire_of(group_id: str, committed_by_ms: int, limit: int) -> Operation[int]:
    count: int = yield statements.expire_of(group_id, committed_by_ms, limit)
    return count
