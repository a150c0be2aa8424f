"""The operations of groups' offsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.control.drivers.statements import Operation, uuid_of
from penstock.control.groups import statements
from penstock.control.values import CommittedOffset


def commit(group_id: str, offsets: Sequence[CommittedOffset]) -> Operation[None]:
    """Store offsets, of a partition's the newest, but none of an earlier topic of the name.

    In the order of the partitions, so that commits of a group do not deadlock.
    """
    newest = {(one.topic, one.partition): one for one in offsets}
    renewed = yield statements.read_renewed({(one.topic, one.topic_id) for one in offsets})
    if renewed:
        ids = {name: uuid_of(topic_id) for name, topic_id in renewed}
        newest = {
            key: one
            for key, one in newest.items()
            if ids.get(one.topic, one.topic_id) == one.topic_id
        }
    yield statements.write([statements.values_of(newest[key]) for key in sorted(newest)], group_id)


def read(
    group_id: str, partitions: Sequence[tuple[str, int]] | None
) -> Operation[list[CommittedOffset]]:
    """A group's offsets in some partitions, or in all; by topic and partition."""
    if partitions is None:
        found = yield statements.read_all(group_id)
    else:
        found = yield statements.read(set(partitions), group_id)
    return sorted(map(statements.offset_of, found), key=lambda one: (one.topic, one.partition))


def group_ids() -> Operation[list[str]]:
    """The groups that have an offset, in order."""
    return [group_id for (group_id,) in (yield statements.read_group_ids())]


def delete(group_id: str, partitions: Sequence[tuple[str, int]]) -> Operation[None]:
    yield statements.delete(partitions, group_id)


def delete_all(group_ids: Iterable[str]) -> Operation[None]:
    """Forget all offsets of some groups."""
    yield statements.delete_all(_texts(group_ids))


def having_offsets(group_ids: Iterable[str]) -> Operation[list[str]]:
    """Those of some groups that have an offset."""
    return [group_id for (group_id,) in (yield statements.having_offsets(_texts(group_ids)))]


def _texts(group_ids: Iterable[str]) -> list[tuple[str]]:
    """Ids that a column of text may hold: there are no offsets of the others."""
    return [(group_id,) for group_id in group_ids if "\0" not in group_id]


def expire(now_ms: int, limit: int) -> Operation[int]:
    """Delete expired offsets that nobody is just changing; how many."""
    count: int = yield statements.expire(now_ms, limit)
    return count
