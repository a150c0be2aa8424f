"""Leases and commits of objects.

**A commit** is one transaction of six round trips to PostgreSQL, five without idempotent
producers, whatever the number of partitions:

1. `BEGIN` and the shared lock of metadata: topics stand still;
2. the object's row, locked, with the image's stamp and the database's time;
3. the partitions' rows, locked in the order of their ids, so that commits do not deadlock;
4. the states of producers (as they are now, since whoever wrote to the partitions has committed),
   and, for markers, which transactions are open, in a statement more;
5. all that is written, in one statement;
6. `COMMIT`.

Rows of new partitions are made before, once. Whether COMMIT took effect may be unknown: the object
is then COMMITTED or not, and the same commit again gets the first answer or is made.

**A sink's commit** is one transaction, too: the query's row is locked first, then its objects by
their ids, then partitions as above; one statement for each object, and the row last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from uuid import UUID

from penstock.control.batch_index import (
    aborted,
    commit_rules,
    extents,
    objects,
    partitions,
    rules,
)
from penstock.control.batch_index.formats import decode_answer, encode_answer
from penstock.control.batch_index.values import (
    CommitAnswer,
    ObjectCommit,
    ObjectLease,
    PartitionKey,
)
from penstock.control.drivers.statements import Again, Operation, Together
from penstock.control.metadata.images import Images
from penstock.control.sink_commits import object_rules as sink_rules
from penstock.control.sink_commits import operations as sinks
from penstock.control.sink_commits.object_rules import SinkAnswer
from penstock.control.sink_commits.rules import check_sink_version
from penstock.control.values import SinkCommit

_write = Together(
    partitions.write_rows,
    extents.insert,
    partitions.write_producers,
    aborted.insert,
    objects.write_answer,
    objects.write_committed,
)


def lease_objects(
    images: Images,
    nonce: int,
    *,
    broker_id: int,
    incarnation: UUID,
    count: int,
) -> Operation[list[ObjectLease]]:
    """Reserve keys for objects."""
    known = yield from images.current()
    rules.check_lease(known.image, broker_id, incarnation, count)
    last = yield objects.allocate_ids(count)
    leases = [
        ObjectLease(object_id, rules.object_key(object_id, nonce))
        for object_id in range(last - count + 1, last + 1)
    ]
    yield objects.write_leases(leases)
    return leases


def lease_segment(nonce: int, key: PartitionKey, base_offset: int) -> Operation[ObjectLease]:
    """Reserve the key of a sealed segment."""
    object_id = yield objects.allocate_ids(1)
    lease = ObjectLease(object_id, rules.segment_key(object_id, nonce, *key, base_offset))
    yield objects.write_leases([lease])
    return lease


def commit_object(images: Images, commit: ObjectCommit) -> Operation[CommitAnswer]:
    """Give the entries of an object their offsets, or the first answer to a repetition."""
    object_id = commit.object_id
    found = (yield from objects.lock([object_id])).get(object_id)
    if found is None or found.state != "pending":
        kept = yield from objects.answers([object_id])
        state = found and found.state
        return decode_answer(rules.first_answer(object_id, state, kept.get(object_id)))
    topic_of = (yield from images.at(found.stamp)).topic
    partition_keys, producer_keys = commit_rules.commit_keys(commit)
    rows = yield from _partitions(partition_keys, topic_of)
    plan = commit_rules.plan_commit(
        commit,
        found.lease,
        topic_of=topic_of,
        partitions=rows,
        producers=(yield from partitions.producers(rows, producer_keys)),
        now_ms=found.now_ms,
        begun=(yield from aborted.open_in(rows, commit_rules.marked_keys(commit))),
    )
    yield from _write_plan(commit, plan)
    return plan.answer


def commit_sink_objects(
    images: Images,
    record: SinkCommit,
    commits: Sequence[ObjectCommit],
    *,
    expected_version: int,
) -> Operation[SinkAnswer]:
    """Commit all objects of a sink's batch and save its row, or neither."""
    ids = [commit.object_id for commit in commits]
    row = yield from sinks.lock(record.query_id)
    if row is not None and sink_rules.is_repeated(record, row, expected=expected_version):
        kept = yield from objects.answers(ids)
        if len(kept) == len(ids):
            again = yield from sinks.read(record.query_id)
            return SinkAnswer(again or row, tuple([decode_answer(kept[one]) for one in ids]))
    check_sink_version(record.query_id, found=row, expected=expected_version)
    found = yield from objects.lock(ids)
    locked = [sink_rules.pending(object_id, found.get(object_id)) for object_id in ids]
    topic_of = (yield from images.at(locked[0].stamp)).topic
    rows = yield from _partitions(sink_rules.sink_keys(commits), topic_of)
    plans = sink_rules.plan_sink_objects(
        commits,
        [one.lease for one in locked],
        topic_of=topic_of,
        partitions=rows,
        now_ms=locked[0].now_ms,
    )
    for commit, plan in zip(commits, plans, strict=True):
        yield from _write_plan(commit, plan)
    answers = tuple([plan.answer for plan in plans])
    placed = sink_rules.with_offsets(record, commits, answers)
    version = yield from sinks.save_over(placed, row, expected_version=expected_version)
    return SinkAnswer(dataclasses.replace(placed, version=version), answers)


def _partitions(
    keys: Iterable[PartitionKey], topic_of: rules.TopicOf
) -> Operation[dict[PartitionKey, rules.PartitionRow]]:
    """The rows of partitions that may be written to, locked."""
    wanted = [key for key in keys if rules.write_refusal(topic_of(key[0]), *key) is None]
    return (yield from partitions.lock_or_add(wanted))


def _write_plan(commit: ObjectCommit, plan: commit_rules.CommitPlan) -> Operation[None]:
    rows, object_id = plan.partitions, commit.object_id
    written = yield _write(
        list(rows.values()),
        [
            one
            for key, added in plan.answer.extents.items()
            for one in extents.rows_of(rows[key].partition_id, added)
        ],
        [
            partitions.producer_row(rows[key[:2]].partition_id, key[2], state)
            for key, state in plan.producers.items()
        ],
        [
            one
            for key, ended in plan.aborted.items()
            for one in aborted.rows_of(rows[key].partition_id, ended)
        ],
        [(object_id, encode_answer(plan.answer))],
        [(object_id, plan.state, "wal", commit.size_bytes, plan.references)],
    )
    if not written:
        raise Again(f"object {object_id} changed while its row was locked")
