"""Methods of the control plane for the objects of diskless topics: leases, commits and deletion.

An object's row goes PENDING → COMMITTED → DELETING → gone, or PENDING → DELETING → gone. Keys are
never reused. The age of a row is measured by the database's clock; SQLite uses the broker's.

**A commit** is one transaction, whatever the number of partitions. Its round trips to PostgreSQL:

1. `BEGIN`, with the shared lock of metadata
2. lock the object's row; read the image's stamp and the database's time
3. lock the partitions' rows, in the order of their ids to avoid deadlocks
4. read the states of idempotent producers, if the object has any
5. read the open transactions, if the object has transaction markers
6. write all rows, in one statement
7. `COMMIT`

The first commit to a partition takes two more round trips, which add the partition's row. If the
outcome of COMMIT is unknown, the caller repeats the commit. The repetition returns the stored
result, or makes the commit if it had not taken effect.

**A sink's commit** is one transaction, too. It locks the query's row, then its objects by id, then
partitions as above. It writes one statement per object, and the query's row last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from msgspec.structs import replace

from penstock.base.system import Randomness
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
    MarkedObject,
    ObjectCommit,
    ObjectLease,
    ObjectTotals,
    PartitionKey,
    StoreIdentity,
    Watermarks,
)
from penstock.control.drivers.statements import (
    Again,
    Lock,
    Operation,
    Together,
    operation,
    query,
)
from penstock.control.errors import ObjectLeaseLost
from penstock.control.limits import COMMIT_ANSWER_KEPT_MS
from penstock.control.metadata.operations import Metadata
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


class DisklessObjects(Metadata):
    """Methods of `ControlPlane` for the objects of diskless topics."""

    _randomness: Randomness

    def _notify(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        """Notify other brokers of the new watermarks of partitions."""

    @query
    def store_identity(self) -> Operation[StoreIdentity | None]:
        """Return the stored identity of the object store, or None if none is stored."""
        return objects.store()

    @operation()
    def adopt_store(self, identity: StoreIdentity) -> Operation[StoreIdentity]:
        """Store the identity of the object store unless one is stored; return the stored identity.

        A stored identity never changes.
        """
        yield objects.adopt_store(*identity)
        return (yield from objects.store()) or identity

    @operation(lock=Lock.TOPICS)
    def lease_objects(
        self, *, broker_id: int, incarnation: UUID, count: int
    ) -> Operation[list[ObjectLease]]:
        """Reserve keys for `count` objects, and add a PENDING row for each.

        Raises:
            StaleBroker: another incarnation owns the broker's id, or it is not registered.
            TooLarge: `count` is not between 1 and `OBJECT_LEASES_PER_CALL_MAX`.
        """
        nonce = self._randomness.bits(32)
        known = yield from self._images.current()
        rules.check_lease(known.image, broker_id, incarnation, count)
        last = yield objects.allocate_ids(count)
        leases = [
            ObjectLease(object_id, rules.object_key(object_id, nonce))
            for object_id in range(last - count + 1, last + 1)
        ]
        yield objects.write_leases(leases)
        return leases

    @operation()
    def lease_segment(
        self, topic_id: UUID, partition: int, *, base_offset: int
    ) -> Operation[ObjectLease]:
        """Reserve a key for a sealed segment that begins at `base_offset`; add a PENDING row."""
        nonce = self._randomness.bits(32)
        object_id = yield objects.allocate_ids(1)
        key = rules.segment_key(object_id, nonce, topic_id, partition, base_offset)
        lease = ObjectLease(object_id, key)
        yield objects.write_leases([lease])
        return lease

    @operation()
    def renew_leases(self, object_ids: Sequence[int]) -> Operation[None]:
        """Reset the age of PENDING rows.

        The sweeper therefore does not mark objects whose writing takes long.

        Raises:
            ObjectLeaseLost: a row is not PENDING any more.
        """
        found = yield from objects.lock(object_ids)
        for object_id in sorted(object_ids):
            if object_id not in found or found[object_id].state != "pending":
                raise ObjectLeaseLost(object_id)
        yield objects.renew_leases([(object_id,) for object_id in object_ids])

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        """Assign offsets to the entries of a written object, in one transaction.

        Entries are rejected one by one: by the rules of idempotent producers and of transactions,
        or if the topic or partition does not exist, or if the topic is not diskless. An object
        without accepted entries is marked DELETING. A repeated call returns the first result.

        Raises:
            ObjectLeaseLost: the object's row is DELETING or gone; write the object again under
                another key.
            CommitForgotten: the object was committed, and the stored result has been deleted since.
            TooLarge: the object has more than `OBJECT_ENTRIES_MAX` entries.
            InvalidCommit: the entries overlap, or contradict their layouts or the object's size.
        """
        commit_rules.check_commit(commit)

        def place() -> Operation[CommitAnswer]:
            object_id = commit.object_id
            found = (yield from objects.lock([object_id])).get(object_id)
            if found is None or found.state != "pending":
                kept = yield from objects.answers([object_id])
                state = found and found.state
                return decode_answer(rules.first_answer(object_id, state, kept.get(object_id)))
            topic_of = (yield from self._images.at(found.stamp)).topic
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

        answer = await self._database.change(place, lock=Lock.TOPICS)
        self._notify(answer.watermarks)
        return answer

    async def commit_sink_objects(
        self, record: SinkCommit, *, expected_version: int, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        """Commit all objects of a sink's batch and save its row as done, in one transaction.

        Saves the row as `ControlPlane.save_sink_commit` does, with the offsets of its targets.
        Offsets are assigned in the order of `commits`. A repeated call returns the first result.

        Raises:
            StaleSink: the row is at another version, or `record` cannot follow it.
            EntryRefused: a topic or partition does not exist, or is not diskless.
            ObjectLeaseLost: an object is DELETING or gone; write all objects again.
            TooLarge: more than `SINK_OBJECTS_MAX` objects, or an error of `commit_object`.
            InvalidCommit: no object, entries of an idempotent producer, or an error of
                `commit_object`.
        """
        sink_rules.check_sink_objects(record, commits)
        ids = [commit.object_id for commit in commits]

        def place() -> Operation[SinkAnswer]:
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
            topic_of = (yield from self._images.at(locked[0].stamp)).topic
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
            return SinkAnswer(replace(placed, version=version), answers)

        answer = await self._database.change(place, lock=Lock.TOPICS)
        for committed in answer.answers:
            self._notify(committed.watermarks)
        return answer

    @query
    def highest_object_id(self) -> Operation[int]:
        """Return the highest object id that was ever leased, or 0."""
        highest: int = yield objects.highest_id()
        return highest

    @query
    def object_totals(self) -> Operation[list[ObjectTotals]]:
        """Return the number of objects and their total bytes, by state and kind."""
        return [
            ObjectTotals(state, kind, count, int(size_bytes))
            for state, kind, count, size_bytes in sorted(map(tuple, (yield objects.totals())))
        ]

    @query
    def referenced_keys(
        self, *, after: str, limit: int
    ) -> Operation[list[tuple[str, ObjectLease]]]:
        """Return (state, lease) of up to `limit` objects whose keys follow `after`, by key."""
        return [
            (state, ObjectLease(object_id, key))
            for state, object_id, key in (yield objects.keys_after(after, limit))
        ]

    @operation()
    def mark_for_deletion(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> Operation[list[MarkedObject]]:
        """Mark unneeded objects as DELETING; return up to `limit` DELETING objects.

        Marks objects that were PENDING for `pending_grace_ms`, and COMMITTED objects that have had
        no extents for `unreferenced_grace_ms`. A later commit of a marked object is rejected.
        """
        left = limit - len((yield from objects.deleting(limit)))
        left -= yield objects.mark_pending(pending_grace_ms, left)
        yield objects.mark_unreferenced(unreferenced_grace_ms, left)
        yield objects.drop_answers(COMMIT_ANSWER_KEPT_MS, limit)
        return (yield from objects.deleting(limit))

    @operation()
    def forget_objects(self, object_ids: Sequence[int]) -> Operation[None]:
        """Delete the rows of DELETING objects whose bytes are deleted. Idempotent."""
        ids = [(object_id,) for object_id in object_ids]
        yield objects.forget(ids)
        yield objects.forget_answers(ids)


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
