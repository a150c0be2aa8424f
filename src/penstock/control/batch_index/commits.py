"""Leases and commits of objects.

**A commit** is one transaction of six round trips to PostgreSQL (five without idempotent
producers), whatever the number of partitions: `BEGIN` with the shared lock of metadata; the
object's row, locked, with the image's stamp and the database's time; the partitions' rows, locked
in the order of their ids to avoid deadlocks; the states of producers and, for markers, the open
transactions; all writes, in one statement; `COMMIT`. Rows of new partitions are added before, once.
If the outcome of COMMIT is unknown, repeating the commit returns the first answer or makes it.

**A sink's commit** is one transaction, too: it locks the query's row, then its objects by id, then
partitions as above; it writes one statement per object, and the row last.
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
from penstock.control.sink_commits import operations as sinks
from penstock.control.sink_commits import rules as sink_rules
from penstock.control.sink_commits.rules import SinkAnswer, check_sink_version
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
    object_id = yield objects.allocate_ids(1)
    lease = ObjectLease(object_id, rules.segment_key(object_id, nonce, *key, base_offset))
    yield objects.write_leases([lease])
    return lease


def commit_object(images: Images, commit: ObjectCommit) -> Operation[CommitAnswer]:
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
    ids = [commit.object_id for commit in commits]
    row = yield from sinks.lock(record.query_id)
    if row is not None and sink_rules.is_repeated(record, row, expected=expected_version):
        kept = yield from objects.answers(ids)
        if len(kept) == len(ids):
            again = yield from sinks.read(record.query_id)
            return SinkAnswer(
                again or row, tuple([decode_answer(kept[object_id]) for object_id in ids])
            )
    check_sink_version(record.query_id, found=row, expected=expected_version)
    found = yield from objects.lock(ids)
    locked = [sink_rules.pending(object_id, found.get(object_id)) for object_id in ids]
    topic_of = (yield from images.at(locked[0].stamp)).topic
    rows = yield from _partitions(sink_rules.sink_keys(commits), topic_of)
    plans = sink_rules.plan_sink_objects(
        commits,
        [object_row.lease for object_row in locked],
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
    wanted = [key for key in keys if rules.write_refusal(topic_of(key[0]), *key) is None]
    return (yield from partitions.lock_or_add(wanted))


def _write_plan(commit: ObjectCommit, plan: commit_rules.CommitPlan) -> Operation[None]:
    rows, object_id = plan.partitions, commit.object_id
    written = yield _write(
        list(rows.values()),
        [
            extent_row
            for key, added in plan.answer.extents.items()
            for extent_row in extents.rows_of(rows[key].partition_id, added)
        ],
        [
            partitions.producer_row(rows[key[:2]].partition_id, key[2], state)
            for key, state in plan.producers.items()
        ],
        [
            aborted_row
            for key, ended in plan.aborted.items()
            for aborted_row in aborted.rows_of(rows[key].partition_id, ended)
        ],
        [(object_id, encode_answer(plan.answer))],
        [(object_id, plan.state, "wal", commit.size_bytes, plan.references)],
    )
    if not written:
        raise Again(f"object {object_id} changed while its row was locked")
