"""Objects of diskless topics: methods of the control plane for their leases, commits and ends.

An object's row goes PENDING → COMMITTED → DELETING → gone, or PENDING → DELETING → gone. Keys are
never reused. Ages of rows are measured by the control plane's clock (the database's, if there is
one), never by a broker's.

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
    """Methods of `ControlPlane` for objects."""

    _randomness: Randomness

    def _notify(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        """Notify other brokers of changed partitions."""

    @query
    def store_identity(self) -> Operation[StoreIdentity | None]:
        """Return the identity of the adopted object store; None before the adoption."""
        return objects.store()

    @operation()
    def adopt_store(self, identity: StoreIdentity) -> Operation[StoreIdentity]:
        """Adopt a store unless one is adopted; return the adopted one, which never changes."""
        yield objects.adopt_store(*identity)
        return (yield from objects.store()) or identity

    @operation(lock=Lock.TOPICS)
    def lease_objects(
        self, *, broker_id: int, incarnation: UUID, count: int
    ) -> Operation[list[ObjectLease]]:
        """Reserve keys for objects, as rows PENDING.

        Raises:
            StaleBroker: another incarnation owns the broker's id, or it is not registered.
            TooLarge: more than `OBJECT_LEASES_PER_CALL_MAX`.
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
        """Reserve the key of a sealed segment that begins at an offset, as a PENDING row."""
        nonce = self._randomness.bits(32)
        object_id = yield objects.allocate_ids(1)
        key = rules.segment_key(object_id, nonce, topic_id, partition, base_offset)
        lease = ObjectLease(object_id, key)
        yield objects.write_leases([lease])
        return lease

    @operation()
    def renew_leases(self, object_ids: Sequence[int]) -> Operation[None]:
        """Reset the age of PENDING rows whose objects take long to write.

        Raises:
            ObjectLeaseLost: a row is not PENDING any more.
        """
        found = yield from objects.lock(object_ids)
        for object_id in sorted(object_ids):
            if object_id not in found or found[object_id].state != "pending":
                raise ObjectLeaseLost(object_id)
        yield objects.renew_leases([(object_id,) for object_id in object_ids])

    async def commit_object(self, commit: ObjectCommit) -> CommitAnswer:
        """Assign offsets to the entries of a written object, all in one transaction.

        An entry is rejected on its own, by the rules of idempotent producers and of transactions,
        or because its topic (which must have `diskless.enable`) or its partition does not exist. An
        object without accepted entries is marked DELETING.

        Raises:
            ObjectLeaseLost: its row is DELETING or gone; write the object again under another key.
            TooLarge: more than `OBJECT_ENTRIES_MAX` entries.
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
        """Commit all objects of a sink's batch and save its row as done: both or nothing.

        The row is saved as by `ControlPlane.save_sink_commit`, with the offsets of its targets.
        Objects are placed in their order. A repetition gets the first answer.

        Raises:
            StaleSink: the row is at another version, or `record` cannot follow it.
            EntryRefused: a topic or partition does not exist, or is not diskless.
            ObjectLeaseLost: an object is DELETING or gone; write all objects again.
            TooLarge: more than `SINK_OBJECTS_MAX` objects, or as `commit_object`.
            InvalidCommit: no object, or entries of an idempotent producer.
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
        """Return the highest id that was ever leased; 0 before the first."""
        highest: int = yield objects.highest_id()
        return highest

    @query
    def object_totals(self) -> Operation[list[ObjectTotals]]:
        """Return the number and bytes of objects, by state and kind."""
        return [
            ObjectTotals(state, kind, count, int(size_bytes))
            for state, kind, count, size_bytes in sorted(map(tuple, (yield objects.totals())))
        ]

    @query
    def referenced_keys(
        self, *, after: str, limit: int
    ) -> Operation[list[tuple[str, ObjectLease]]]:
        """Return (state, lease) of up to `limit` rows with a key above `after`, by key."""
        return [
            (state, ObjectLease(object_id, key))
            for state, object_id, key in (yield objects.keys_after(after, limit))
        ]

    @operation()
    def mark_for_deletion(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> Operation[list[MarkedObject]]:
        """Mark expired PENDING rows, and COMMITTED objects long without extents, as DELETING.

        Returns all marked objects. A later commit of a marked object is rejected.
        """
        left = limit - len((yield from objects.deleting(limit)))
        left -= yield objects.mark_pending(pending_grace_ms, left)
        yield objects.mark_unreferenced(unreferenced_grace_ms, left)
        yield objects.drop_answers(COMMIT_ANSWER_KEPT_MS, limit)
        return (yield from objects.deleting(limit))

    @operation()
    def forget_objects(self, object_ids: Sequence[int]) -> Operation[None]:
        """Drop the rows of DELETING objects whose bytes are deleted; repeatable."""
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
