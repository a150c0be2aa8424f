"""The diskless part of the PostgreSQL form: the batch index, for several brokers at once.

**A commit** is one transaction of six round trips, five without idempotent producers, whatever
the number of partitions:

1. `BEGIN` and the shared lock of metadata: topics stand still;
2. the object's row, locked, with the image's stamp and the database's time;
3. the partitions' rows, locked in the order of their ids, so that commits do not deadlock;
4. the states of producers (as they are now, since whoever wrote to the partitions has committed);
5. all that is written, in one statement;
6. `COMMIT`.

Rows of new partitions are made before, once. Whether COMMIT took effect may be unknown: the object
is then COMMITTED or not, and the same commit again gets the first answer or is made.

**A find** is one statement without locks. It sees the partition's row and its extents in one
state; it waits for nobody, and what other transactions do or leave open does not hold it up.

**A sink's commit** is one transaction, too: the query's row is locked first, then its objects by
their ids, then partitions as above; one statement for each object, and the row last.

Rules are in `rules.py` and its neighbours, rows in `postgres_tables.py` and `postgres_objects.py`.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from penstock.base.system import Randomness
from penstock.control.batch_index import commit_rules, rules
from penstock.control.batch_index import postgres_objects as objects
from penstock.control.batch_index import postgres_tables as rows
from penstock.control.batch_index.formats import decode_answer
from penstock.control.batch_index.plane import DisklessOperations
from penstock.control.batch_index.values import (
    CommitAnswer,
    ObjectCommit,
    ObjectLease,
    PartitionKey,
)
from penstock.control.drivers.postgres_connections import Connection, Connections, run
from penstock.control.drivers.statements import Again
from penstock.control.errors import ObjectLeaseLost
from penstock.control.sink_commits import object_rules as sink_rules
from penstock.control.sink_commits import operations as sinks
from penstock.control.sink_commits.object_rules import SinkAnswer
from penstock.control.sink_commits.rules import check_sink_version
from penstock.control.values import MetadataImage, SinkCommit, Topic

BEGIN_FENCED: Final = "BEGIN; SELECT penstock_fence(NULL)"
"""Topics stand still until the transaction ends."""


class PostgresDiskless(DisklessOperations):
    """The part of `PostgresControlPlane` that is a `DisklessPlane`."""

    _randomness: Randomness

    @property
    @abstractmethod
    def _database(self) -> Connections:
        """Where work runs."""

    @abstractmethod
    async def _locked_image(
        self, connection: Connection, stamp: tuple[int, UUID] | None = None
    ) -> MetadataImage:
        """The newest image, in a transaction that has the lock of metadata, shared or not.

        `stamp` is the image's version and stamp, where the caller has read them.
        """

    async def lease_objects(
        self, *, broker_id: int, incarnation: UUID, count: int
    ) -> list[ObjectLease]:
        async def work(connection: Connection) -> list[ObjectLease]:
            image = await self._locked_image(connection)
            rules.check_lease(image, broker_id, incarnation, count)
            nonce = self._randomness.bits(32)
            last = await objects.allocate_ids(connection, count)
            leases = [
                ObjectLease(object_id, rules.object_key(object_id, nonce))
                for object_id in range(last - count + 1, last + 1)
            ]
            await objects.write_leases(connection, leases)
            return leases

        return await self._database.transaction(work, begin=BEGIN_FENCED)

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        commit_rules.check_commit(commit)

        async def work(connection: Connection) -> CommitAnswer:
            found = await objects.lock_object(connection, commit.object_id)
            if found is None:
                raise ObjectLeaseLost(commit.object_id)
            if found.state != "pending":
                return await _first_answer(connection, commit.object_id, found)
            topics = self._by_id(await self._locked_image(connection, found.image))
            return await _commit(connection, commit, found, topics)

        answer = await self._database.transaction(work, begin=BEGIN_FENCED)
        self._tell(answer.marks)
        return answer

    async def commit_sink_objects(
        self, record: SinkCommit, *, expected_version: int, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        sink_rules.check_sink_objects(record, commits)

        async def work(connection: Connection) -> SinkAnswer:
            row = await run(connection, sinks.lock(record.query_id))
            if row is not None and sink_rules.is_repeated(record, row, expected=expected_version):
                kept = [await objects.read_answer(connection, one.object_id) for one in commits]
                answers = tuple([decode_answer(answer) for answer in kept if answer is not None])
                if len(answers) == len(commits):
                    again = await run(connection, sinks.read(record.query_id))
                    return SinkAnswer(again or row, answers)
            check_sink_version(record.query_id, found=row, expected=expected_version)
            found = await _lock_pending(connection, commits)
            topics = self._by_id(await self._locked_image(connection, found[0].image))
            answers = await _commit_all(connection, commits, found, topics)
            placed = sink_rules.with_offsets(record, commits, answers)
            version = await run(
                connection, sinks.save_over(placed, row, expected_version=expected_version)
            )
            return SinkAnswer(dataclasses.replace(placed, version=version), answers)

        answer = await self._database.transaction(work, begin=BEGIN_FENCED)
        for one in answer.answers:
            self._tell(one.marks)
        return answer


async def _commit(
    connection: Connection,
    commit: ObjectCommit,
    found: objects.ObjectRow,
    topics: Mapping[UUID, Topic],
) -> CommitAnswer:
    partition_keys, producer_keys = commit_rules.commit_keys(commit)
    partitions = await _partitions(connection, partition_keys, topics)
    ids = {key: one.partition_id for key, one in partitions.items()}
    plan = commit_rules.plan_commit(
        commit,
        found.lease,
        topics=topics,
        partitions={key: one.row for key, one in partitions.items()},
        producers=await rows.read_producers(connection, ids, producer_keys),
        now_ms=found.now_ms,
    )
    if not await rows.write_commit(
        connection, commit.object_id, commit.size_bytes, plan, ids, found.now_ms
    ):
        raise Again(f"object {commit.object_id} changed while its row was locked")
    return plan.answer


async def _lock_pending(
    connection: Connection, commits: Sequence[ObjectCommit]
) -> list[objects.ObjectRow]:
    """The objects' rows, locked in the order of their ids; in the order of `commits`."""
    found = {
        object_id: sink_rules.pending(object_id, await objects.lock_object(connection, object_id))
        for object_id in sorted(commit.object_id for commit in commits)
    }
    return [found[commit.object_id] for commit in commits]


async def _commit_all(
    connection: Connection,
    commits: Sequence[ObjectCommit],
    found: Sequence[objects.ObjectRow],
    topics: Mapping[UUID, Topic],
) -> tuple[CommitAnswer, ...]:
    partitions = await _partitions(connection, sink_rules.sink_keys(commits), topics)
    ids = {key: one.partition_id for key, one in partitions.items()}
    plans = sink_rules.plan_sink_objects(
        commits,
        [row.lease for row in found],
        topics=topics,
        partitions={key: one.row for key, one in partitions.items()},
        now_ms=found[0].now_ms,
    )
    for commit, row, plan in zip(commits, found, plans, strict=True):
        if not await rows.write_commit(
            connection, commit.object_id, commit.size_bytes, plan, ids, row.now_ms
        ):
            raise Again(f"object {commit.object_id} changed while its row was locked")
    return tuple([plan.answer for plan in plans])


async def _first_answer(
    connection: Connection, object_id: int, found: objects.ObjectRow
) -> CommitAnswer:
    kept = await objects.read_answer(connection, object_id)
    answer = rules.first_answer(object_id, found.state, kept)
    if answer is None:
        raise Again(f"object {object_id} changed while its row was locked")
    return decode_answer(answer)


async def _partitions(
    connection: Connection, keys: Iterable[PartitionKey], topics: Mapping[UUID, Topic]
) -> dict[PartitionKey, rows.LockedPartition]:
    """The rows of partitions, locked; those that may be written to and have none get theirs."""
    wanted = {key for key in keys if rules.refusal(topics.get(key[0]), key[0], key[1]) is None}
    found = await rows.lock_partitions(connection, wanted) if wanted else {}
    missing = wanted - found.keys()
    if missing:
        await rows.add_partitions(connection, missing)
        found = await rows.lock_partitions(connection, wanted)
    return found
