"""Rules of sink commits: which commit of a query may follow the stored one, and size limits.

Pure functions. A commit of batch `b` is an *intent* or *done*. The result of saving it:

| stored commit of the query | an intent of b             | b as done      |
|----------------------------|----------------------------|----------------|
| none                       | saved                      | saved          |
| an intent of b             | saved, with other targets  | saved          |
| an intent of another batch | rejected                   | rejected       |
| a lower batch as done      | saved                      | saved          |
| b or a higher one as done  | rejected                   | rejected       |

A commit is saved as done without an intent if it has no rows, or if the control plane assigns its
offsets.

A commit to diskless topics is one transaction with the query's row. All objects are committed, or
none: one rejected entry rejects the whole commit.

| stored row                               | its objects                | result of the commit  |
|------------------------------------------|----------------------------|-----------------------|
| at the expected version                  | all PENDING                | success               |
| at the expected version                  | any of them not PENDING    | `ObjectLeaseLost`     |
| this batch as done, at a later version   | all results stored         | the first result      |
| anything else                            | any                        | `StaleSink`           |

Sinks write to diskless topics without producer ids: the row alone detects repetitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from penstock.control.batch_index.commit_rules import (
    CommitPlan,
    check_commit,
    commit_keys,
    plan_commit,
)
from penstock.control.batch_index.rules import PartitionRow, TopicOf
from penstock.control.batch_index.values import (
    CommitAnswer,
    ObjectCommit,
    ObjectLease,
    ObjectState,
    PartitionKey,
)
from penstock.control.errors import (
    EntryRefused,
    InvalidCommit,
    ObjectLeaseLost,
    StaleSink,
    TooLarge,
)
from penstock.control.limits import SINK_OBJECTS_MAX, SINK_TARGETS_MAX
from penstock.control.values import SinkCommit, SinkTarget

SINKS_MAX: Final = 10_000
"""Queries with a stored commit."""

SINK_MANIFEST_BYTES_MAX: Final = 16 << 20
"""Bytes of one stored manifest, which is compressed."""


def check_sink_commit(
    record: SinkCommit, *, found: SinkCommit | None, expected: int, count: int
) -> None:
    """Check that a commit may follow the stored one.

    `count` is the number of queries with a commit.

    Raises:
        StaleSink: the commit cannot follow the stored one.
        TooLarge: the commit is too large, or there are too many queries.
    """
    check_sink_version(record.query_id, found=found, expected=expected)
    _check_size(record, new=found is None, count=count)
    if found is not None and not _follows(record, found):
        raise StaleSink(
            record.query_id,
            f"is batch {found.batch_id} as {found.state!r}: batch {record.batch_id} as"
            f" {record.state!r} cannot follow it",
        )


def check_sink_version(query_id: str, *, found: SinkCommit | None, expected: int) -> None:
    version = 0 if found is None else found.version
    if version != expected:
        raise StaleSink(query_id, f"is at version {version}, but the change expected {expected}")


def _follows(record: SinkCommit, found: SinkCommit) -> bool:
    if found.state == "intent":
        return record.batch_id == found.batch_id
    return record.batch_id > found.batch_id


def _check_size(record: SinkCommit, *, new: bool, count: int) -> None:
    if new and count >= SINKS_MAX:
        raise TooLarge(
            f"{count} queries have commits, the limit is {SINKS_MAX}: delete commits of old queries"
        )
    if len(record.targets) > SINK_TARGETS_MAX:
        raise TooLarge(
            f"query {record.query_id!r} writes to {len(record.targets)} partitions,"
            f" the limit is {SINK_TARGETS_MAX}"
        )
    if len(record.manifest) > SINK_MANIFEST_BYTES_MAX:
        raise TooLarge(
            f"the manifest of query {record.query_id!r}, batch {record.batch_id}, has"
            f" {len(record.manifest)} bytes compressed, the limit is {SINK_MANIFEST_BYTES_MAX}"
        )


class _ObjectRow(Protocol):
    @property
    def state(self) -> ObjectState: ...


Row = TypeVar("Row", bound=_ObjectRow)


class SinkAnswer(NamedTuple):
    """The saved row, with its offsets and version, and the result of each object's commit."""

    record: SinkCommit
    answers: tuple[CommitAnswer, ...]


def check_sink_objects(record: SinkCommit, commits: Sequence[ObjectCommit]) -> None:
    """Validate a commit to diskless topics before anything is read.

    Raises:
        TooLarge: more than `SINK_OBJECTS_MAX` objects, or an error of `check_commit`.
        InvalidCommit: the record is not done, there is no object, an object is repeated, an entry
            has a producer; or an error of `check_commit`.
    """
    if len(commits) > SINK_OBJECTS_MAX:
        raise TooLarge(
            f"the commit of query {record.query_id!r} has {len(commits)} objects,"
            f" the limit is {SINK_OBJECTS_MAX}"
        )
    ids = {commit.object_id for commit in commits}
    if record.state != "done" or not commits or len(ids) != len(commits):
        raise InvalidCommit(
            f"query {record.query_id!r}, batch {record.batch_id}: a commit of {len(commits)}"
            f" objects with {len(ids)} ids and state {record.state!r} is invalid. It needs at least"
            " one object, different ids, and the state 'done'."
        )
    for commit in commits:
        check_commit(commit)
        if any(entry.producer_id >= 0 for entry in commit.entries):
            raise InvalidCommit(f"object {commit.object_id}: a sink's batches have no producer")


def is_repeated(record: SinkCommit, found: SinkCommit | None, *, expected: int) -> bool:
    return (
        found is not None
        and found.version > expected
        and found.state == "done"
        and found.batch_id == record.batch_id
    )


def pending(object_id: int, row: Row | None) -> Row:
    if row is None or row.state != "pending":
        raise ObjectLeaseLost(object_id)
    return row


def sink_keys(commits: Sequence[ObjectCommit]) -> set[PartitionKey]:
    return {key for commit in commits for key in commit_keys(commit)[0]}


def plan_sink_objects(
    commits: Sequence[ObjectCommit],
    leases: Sequence[ObjectLease],
    *,
    topic_of: TopicOf,
    partitions: Mapping[PartitionKey, PartitionRow],
    now_ms: int,
) -> tuple[CommitPlan, ...]:
    """Plan the commits of all objects in order. Each plan includes the changes of those before it.

    `partitions` and `now_ms` are as in `plan_commit`.

    Raises:
        EntryRefused: a topic or partition does not exist, or is not diskless.
    """
    rows = dict(partitions)
    plans: list[CommitPlan] = []
    for commit, lease in zip(commits, leases, strict=True):
        plan = plan_commit(
            commit, lease, topic_of=topic_of, partitions=rows, producers={}, now_ms=now_ms
        )
        for placed in plan.answer.placed:
            if placed.error is not None:
                raise EntryRefused(commit.object_id, placed.error, str(placed.message))
        rows.update(plan.partitions)
        plans.append(plan)
    return tuple(plans)


def with_offsets(
    record: SinkCommit, commits: Sequence[ObjectCommit], answers: Sequence[CommitAnswer]
) -> SinkCommit:
    """Return the record with the offsets that its objects got.

    Targets without an object are unchanged.
    """
    offsets: dict[PartitionKey, tuple[int, int]] = {}
    for commit, answer in zip(commits, answers, strict=True):
        for entry, placed in zip(commit.entries, answer.placed, strict=True):
            key = (entry.topic_id, entry.partition)
            first, _ = offsets.get(key, (placed.base_offset, 0))
            offsets[key] = first, placed.base_offset + entry.offset_count
    return replace(record, targets=tuple([_placed(target, offsets) for target in record.targets]))


def _placed(target: SinkTarget, offsets: Mapping[PartitionKey, tuple[int, int]]) -> SinkTarget:
    found = offsets.get((target.topic_id, target.partition))
    if found is None:
        return target
    return replace(target, base_offset=found[0], next_offset=found[1])
