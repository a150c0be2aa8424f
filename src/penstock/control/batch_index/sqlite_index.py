"""The diskless part of the SQLite form: each method is one operation of the writer.

Unlike the image of topics and brokers, the batch index is not held in memory: its tables are the
truth, and a find reads them. Rules are in `rules.py` and `index_rules.py`, rows in
`sqlite_tables.py` and `sqlite_objects.py`.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterable, Sequence
from uuid import UUID

from penstock.base.system import Randomness
from penstock.control.batch_index import commit_rules, rules
from penstock.control.batch_index import sqlite_objects as objects
from penstock.control.batch_index import sqlite_tables as rows
from penstock.control.batch_index.formats import decode_answer
from penstock.control.batch_index.plane import DisklessOperations
from penstock.control.batch_index.sqlite_switch import SqliteDisklessSwitch
from penstock.control.batch_index.values import (
    CommitAnswer,
    ObjectCommit,
    ObjectLease,
    PartitionKey,
)
from penstock.control.drivers.sqlite_statements import run
from penstock.control.errors import ObjectLeaseLost
from penstock.control.metadata import sqlite_tables as tables
from penstock.control.sink_commits import object_rules as sink_rules
from penstock.control.sink_commits import operations as sinks
from penstock.control.sink_commits.object_rules import SinkAnswer
from penstock.control.sink_commits.rules import check_sink_version
from penstock.control.values import SinkCommit
from penstock.records.idempotence import Producer

_HIGHEST_ID = "highest_object_id"


class SqliteDiskless(DisklessOperations, SqliteDisklessSwitch):
    """The part of `SqliteControlPlane` that is a `DisklessPlane`."""

    _randomness: Randomness

    async def lease_objects(
        self, *, broker_id: int, incarnation: UUID, count: int
    ) -> list[ObjectLease]:
        def operation(connection: sqlite3.Connection) -> list[ObjectLease]:
            rules.check_lease(self._current(), broker_id, incarnation, count)
            first = tables.read_counter(connection, _HIGHEST_ID) + 1
            nonce = self._randomness.bits(32)
            leases = [
                ObjectLease(object_id, rules.object_key(object_id, nonce))
                for object_id in range(first, first + count)
            ]
            objects.write_leases(connection, leases, self._clock.now_ms())
            tables.write_counter(connection, _HIGHEST_ID, first + count - 1)
            return leases

        leases: list[ObjectLease] = await self._writer.run(operation)
        return leases

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        commit_rules.check_commit(commit)

        def operation(connection: sqlite3.Connection) -> CommitAnswer:
            object_id = commit.object_id
            row = objects.read_object(connection, object_id)
            if row is None:
                raise ObjectLeaseLost(object_id)
            kept = objects.read_answer(connection, object_id)
            answer = rules.first_answer(object_id, row.state, kept)
            if answer is not None:
                return decode_answer(answer)
            return self._commit(connection, commit, row.lease)

        answer: CommitAnswer = await self._writer.run(operation)
        return answer

    def _commit(
        self, connection: sqlite3.Connection, commit: ObjectCommit, lease: ObjectLease
    ) -> CommitAnswer:
        partition_keys, producer_keys = commit_rules.commit_keys(commit)
        partitions, known = _partitions(connection, partition_keys)
        producers: dict[rules.ProducerKey, Producer] = {}
        for topic_id, partition, producer_id in producer_keys:
            partition_id = known.get((topic_id, partition))
            if partition_id is not None:
                state = rows.read_producer(connection, partition_id, producer_id)
                if state is not None:
                    producers[topic_id, partition, producer_id] = state
        now_ms = self._clock.now_ms()
        plan = commit_rules.plan_commit(
            commit,
            lease,
            topics=self._by_id(self._current()),
            partitions=partitions,
            producers=producers,
            now_ms=now_ms,
        )
        _write(connection, commit, plan, known, now_ms)
        return plan.answer

    async def commit_sink_objects(
        self, record: SinkCommit, *, expected_version: int, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        sink_rules.check_sink_objects(record, commits)

        def operation(connection: sqlite3.Connection) -> SinkAnswer:
            found = run(connection, sinks.lock(record.query_id))
            if found is not None and sink_rules.is_repeated(
                record, found, expected=expected_version
            ):
                kept = [objects.read_answer(connection, commit.object_id) for commit in commits]
                answers = tuple([decode_answer(answer) for answer in kept if answer is not None])
                if len(answers) == len(commits):
                    again = run(connection, sinks.read(record.query_id))
                    return SinkAnswer(again or found, answers)
            check_sink_version(record.query_id, found=found, expected=expected_version)
            placed, answers = self._commit_sink(connection, record, commits)
            save = sinks.save_over(placed, found, expected_version=expected_version)
            version = run(connection, save)
            return SinkAnswer(dataclasses.replace(placed, version=version), answers)

        answer: SinkAnswer = await self._writer.run(operation)
        return answer

    def _commit_sink(
        self,
        connection: sqlite3.Connection,
        record: SinkCommit,
        commits: Sequence[ObjectCommit],
    ) -> tuple[SinkCommit, tuple[CommitAnswer, ...]]:
        """Commit the objects; the row with their offsets, which is yet to be saved."""
        leases = [
            sink_rules.pending(
                commit.object_id, objects.read_object(connection, commit.object_id)
            ).lease
            for commit in commits
        ]
        partitions, known = _partitions(connection, sink_rules.sink_keys(commits))
        now_ms = self._clock.now_ms()
        plans = sink_rules.plan_sink_objects(
            commits,
            leases,
            topics=self._by_id(self._current()),
            partitions=partitions,
            now_ms=now_ms,
        )
        for commit, plan in zip(commits, plans, strict=True):
            _write(connection, commit, plan, known, now_ms)
        answers = tuple([plan.answer for plan in plans])
        return sink_rules.with_offsets(record, commits, answers), answers


def _partitions(
    connection: sqlite3.Connection, keys: Iterable[PartitionKey]
) -> tuple[dict[PartitionKey, rules.PartitionRow], dict[PartitionKey, int]]:
    """The rows of partitions, and the ids of those that have one."""
    found = {key: rows.read_partition(connection, key) for key in keys}
    ids = {key: partition_id for key, (partition_id, _) in found.items() if partition_id}
    return {key: row for key, (_, row) in found.items()}, ids


def _write(
    connection: sqlite3.Connection,
    commit: ObjectCommit,
    plan: commit_rules.CommitPlan,
    known: dict[PartitionKey, int],
    now_ms: int,
) -> None:
    """Everything of a commit; partitions that were not in `known` are added to it."""
    for key in plan.partitions.keys() - known.keys():
        known[key] = rows.add_partition(connection, key)
    rows.write_commit(connection, commit.object_id, plan, known, now_ms)
    objects.write_object(
        connection,
        commit.object_id,
        state=plan.state,
        kind="wal",
        size_bytes=commit.size_bytes,
        extents=plan.references,
        now_ms=now_ms,
    )
