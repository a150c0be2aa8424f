"""Methods of the control plane for sink commits and for the objects of diskless topics.

Those for objects are leases, commits and deletion.

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

import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from penstock.base.system import Randomness
from penstock.control.drivers.statements import (
    Again,
    Lock,
    Operation,
    OverDatabase,
    Together,
    changed,
    operation,
    query,
    row,
    rows,
    value,
)
from penstock.control.operations import diskless_tables
from penstock.control.operations.metadata import Metadata
from penstock.control.rules import commits as rules
from penstock.control.rules import diskless
from penstock.control.rules.commits import SinkAnswer, check_sink_commit, check_sink_version
from penstock.control.values.diskless import (
    CommitAnswer,
    MarkedObject,
    ObjectCommit,
    ObjectLease,
    ObjectTotals,
    PartitionKey,
    StoreIdentity,
    Watermarks,
    decode_answer,
    encode_answer,
)
from penstock.control.values.errors import COMMIT_ANSWER_KEPT_MS, ObjectLeaseLost
from penstock.control.values.topics import SinkCommit, SinkTarget

# Statements for the table of sink commits, and conversion of its rows.
#
# The column `lanes` has a commit's targets, as JSON compressed by zlib: a list of `[topic, topic
# id, partition, producer id, base sequence, records, base offset, next offset]`. A query may write
# to hundreds of partitions, and stores them with every batch. The manifest is opaque here.
#
# Versions come from one counter for all queries: a sequence in PostgreSQL, a row of `counters` in
# SQLite.


_ZLIB_LEVEL: Final = 1
_COLUMNS: Final = "query_id, version, owner, batch_id, state, updated_ms, lanes"
_NEXT_VERSION: Final = "UPDATE counters SET value = value + 1 WHERE name = 'highest_sink_version'"
_VERSION: Final = "(SELECT value FROM counters WHERE name = 'highest_sink_version')"

read_row = row(f"SELECT {_COLUMNS}, manifest FROM sink_commits WHERE query_id = $1")  # noqa: S608
lock_row = row(f"SELECT {_COLUMNS} FROM sink_commits WHERE query_id = $1 FOR UPDATE")  # noqa: S608
read_rows = rows(f"SELECT {_COLUMNS} FROM sink_commits ORDER BY query_id")  # noqa: S608
count_rows = value("SELECT count(*) FROM sink_commits")
insert = value(
    "INSERT INTO sink_commits VALUES ($1, nextval('sink_versions'), $2, $3, $4, $5, $6, $7)"
    " ON CONFLICT (query_id) DO NOTHING RETURNING version",
    sqlite=(
        _NEXT_VERSION,
        f"INSERT INTO sink_commits VALUES ($1, {_VERSION}, $2, $3, $4, $5, $6, $7)",  # noqa: S608
        f"SELECT {_VERSION}",
    ),
)
update = value(
    "UPDATE sink_commits SET version = nextval('sink_versions'), owner = $2, batch_id = $3,"
    " state = $4, updated_ms = $5, lanes = $6, manifest = $7 WHERE query_id = $1 RETURNING version",
    sqlite=(
        _NEXT_VERSION,
        f"UPDATE sink_commits SET version = {_VERSION}, owner = $2, batch_id = $3,"  # noqa: S608
        " state = $4, updated_ms = $5, lanes = $6, manifest = $7 WHERE query_id = $1",
        f"SELECT {_VERSION}",
    ),
)
delete = changed("DELETE FROM sink_commits WHERE query_id = $1")


def values_of(record: SinkCommit) -> tuple[Any, ...]:
    return (
        record.query_id,
        record.owner,
        record.batch_id,
        record.state,
        record.updated_ms,
        encode_targets(record.targets),
        record.manifest,
    )


def commit_of(found: Any) -> SinkCommit:
    query_id, version, owner, batch_id, state, updated_ms, targets, *manifest = found
    return SinkCommit(
        query_id=query_id,
        owner=owner,
        batch_id=batch_id,
        state=state,
        targets=decode_targets(targets),
        manifest=manifest[0] if manifest else b"",
        updated_ms=updated_ms,
        version=version,
    )


def encode_targets(targets: Iterable[SinkTarget]) -> bytes:
    rows = [
        [
            target.topic,
            target.topic_id.hex,
            target.partition,
            target.producer_id,
            target.base_sequence,
            target.records,
            target.base_offset,
            target.next_offset,
        ]
        for target in targets
    ]
    return zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), _ZLIB_LEVEL)


def decode_targets(data: bytes) -> tuple[SinkTarget, ...]:
    return tuple(
        SinkTarget(
            topic=topic,
            topic_id=UUID(hex=topic_id),
            partition=partition,
            producer_id=producer_id,
            base_sequence=base_sequence,
            records=records,
            base_offset=base_offset,
            next_offset=next_offset,
        )
        for (
            topic, topic_id, partition, producer_id, base_sequence, records, base_offset,
            next_offset,
        ) in json.loads(zlib.decompress(data))
    )  # fmt: skip


class SinkCommits(OverDatabase):
    """Methods of `ControlPlane` for sink commits."""

    @query
    def sink_commit(self, query_id: str) -> Operation[SinkCommit | None]:
        """Return the newest commit of a query, or None."""
        return read(query_id)

    @operation()
    def save_sink_commit(self, record: SinkCommit, *, expected_version: int) -> Operation[int]:
        """Save a query's commit if the stored one is at `expected_version`; return the new version.

        An expected version of 0 means that the query has no commit. The rules of
        `check_sink_commit` say which commit may follow which. Versions come from one counter for
        all queries and are never reused.

        Raises:
            StaleSink: the stored commit is at another version, or the new one cannot follow it.
            TooLarge: too many queries or targets, or a manifest of more than
                `SINK_MANIFEST_BYTES_MAX`.
        """
        found = yield from lock(record.query_id)
        return (yield from save_over(record, found, expected_version=expected_version))

    @query
    def sink_commits(self) -> Operation[list[SinkCommit]]:
        """Return the newest commits of all queries, by query id, without manifests."""
        return read_all()

    @operation()
    def delete_sink_commit(self, query_id: str, *, expected_version: int) -> Operation[None]:
        """Delete a query's commit, if it has one.

        Raises:
            StaleSink: the commit is at another version.
        """
        found = yield from lock(query_id)
        if found is not None:
            check_sink_version(query_id, found=found, expected=expected_version)
            yield delete(query_id)


def read(query_id: str) -> Operation[SinkCommit | None]:
    found = yield read_row(query_id)
    return None if found is None else commit_of(found)


def read_all() -> Operation[list[SinkCommit]]:
    return [commit_of(found) for found in (yield read_rows())]


def lock(query_id: str) -> Operation[SinkCommit | None]:
    """Lock a query's commit until the transaction ends; return it without its manifest."""
    found = yield lock_row(query_id)
    return None if found is None else commit_of(found)


def save_over(
    record: SinkCommit, found: SinkCommit | None, *, expected_version: int
) -> Operation[int]:
    count = (yield count_rows()) if found is None else 0
    check_sink_commit(record, found=found, expected=expected_version, count=count)
    write = insert if found is None else update
    version: int | None = yield write(*values_of(record))
    if version is None:
        raise Again(f"another writer saved the first commit of query {record.query_id!r}")
    return version


_write = Together(
    diskless_tables.write_rows,
    diskless_tables.insert,
    diskless_tables.write_producers,
    diskless_tables.insert_aborted,
    diskless_tables.write_answer,
    diskless_tables.write_committed,
)


class DisklessObjects(Metadata):
    """Methods of `ControlPlane` for the objects of diskless topics."""

    _randomness: Randomness

    def _notify(self, watermarks: Mapping[PartitionKey, Watermarks]) -> None:
        """Notify other brokers of the new watermarks of partitions."""

    @query
    def store_identity(self) -> Operation[StoreIdentity | None]:
        """Return the stored identity of the object store, or None if none is stored."""
        return diskless_tables.store()

    @operation()
    def adopt_store(self, identity: StoreIdentity) -> Operation[StoreIdentity]:
        """Store the identity of the object store unless one is stored; return the stored identity.

        A stored identity never changes.
        """
        yield diskless_tables.adopt_store(*identity)
        return (yield from diskless_tables.store()) or identity

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
        diskless.check_lease(known.image, broker_id, incarnation, count)
        last = yield diskless_tables.allocate_ids(count)
        leases = [
            ObjectLease(object_id, diskless.object_key(object_id, nonce))
            for object_id in range(last - count + 1, last + 1)
        ]
        yield diskless_tables.write_leases(leases)
        return leases

    @operation()
    def lease_segment(
        self, topic_id: UUID, partition: int, *, base_offset: int
    ) -> Operation[ObjectLease]:
        """Reserve a key for a sealed segment that begins at `base_offset`; add a PENDING row."""
        nonce = self._randomness.bits(32)
        object_id = yield diskless_tables.allocate_ids(1)
        key = diskless.segment_key(object_id, nonce, topic_id, partition, base_offset)
        lease = ObjectLease(object_id, key)
        yield diskless_tables.write_leases([lease])
        return lease

    @operation()
    def renew_leases(self, object_ids: Sequence[int]) -> Operation[None]:
        """Reset the age of PENDING rows.

        The sweeper therefore does not mark objects whose writing takes long.

        Raises:
            ObjectLeaseLost: a row is not PENDING any more.
        """
        found = yield from diskless_tables.lock(object_ids)
        for object_id in sorted(object_ids):
            if object_id not in found or found[object_id].state != "pending":
                raise ObjectLeaseLost(object_id)
        yield diskless_tables.renew_leases([(object_id,) for object_id in object_ids])

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
        rules.check_commit(commit)

        def place() -> Operation[CommitAnswer]:
            object_id = commit.object_id
            found = (yield from diskless_tables.lock([object_id])).get(object_id)
            if found is None or found.state != "pending":
                kept = yield from diskless_tables.answers([object_id])
                state = found and found.state
                return decode_answer(diskless.first_answer(object_id, state, kept.get(object_id)))
            topic_of = (yield from self._images.at(found.stamp)).topic
            partition_keys, producer_keys = rules.commit_keys(commit)
            rows = yield from _partitions(partition_keys, topic_of)
            plan = rules.plan_commit(
                commit,
                found.lease,
                topic_of=topic_of,
                partitions=rows,
                producers=(yield from diskless_tables.producers(rows, producer_keys)),
                now_ms=found.now_ms,
                begun=(yield from diskless_tables.open_in(rows, rules.marked_keys(commit))),
            )
            yield from _write_plan(commit, plan)
            return plan.answer

        answer = await self._database.change(place, lock=Lock.TOPICS)
        self._notify(answer.watermarks)
        return answer

    async def commit_sink_objects(
        self, record: SinkCommit, *, expected_version: int, commits: Sequence[ObjectCommit]
    ) -> SinkAnswer:
        """Commit all objects of a sink's batch and save its sink commit, in one transaction.

        `record` is in state `done`. It is saved as `ControlPlane.save_sink_commit` does, with the
        offsets of its targets. Offsets are assigned in the order of `commits`. A repeated call
        returns the first result.

        Raises:
            StaleSink: the stored commit is at another version, or `record` cannot follow it.
            EntryRefused: a topic or partition does not exist, or is not diskless.
            ObjectLeaseLost: an object is DELETING or gone; write all objects again.
            TooLarge: more than `SINK_OBJECTS_MAX` objects, or an error of `commit_object`.
            InvalidCommit: no object, entries of an idempotent producer, or an error of
                `commit_object`.
        """
        rules.check_sink_objects(record, commits)
        ids = [commit.object_id for commit in commits]

        def place() -> Operation[SinkAnswer]:
            row = yield from lock(record.query_id)
            if row is not None and rules.is_repeated(record, row, expected=expected_version):
                kept = yield from diskless_tables.answers(ids)
                if len(kept) == len(ids):
                    again = yield from read(record.query_id)
                    return SinkAnswer(
                        again or row, tuple([decode_answer(kept[object_id]) for object_id in ids])
                    )
            check_sink_version(record.query_id, found=row, expected=expected_version)
            found = yield from diskless_tables.lock(ids)
            locked = [rules.pending(object_id, found.get(object_id)) for object_id in ids]
            topic_of = (yield from self._images.at(locked[0].stamp)).topic
            rows = yield from _partitions(rules.sink_keys(commits), topic_of)
            plans = rules.plan_sink_objects(
                commits,
                [object_row.lease for object_row in locked],
                topic_of=topic_of,
                partitions=rows,
                now_ms=locked[0].now_ms,
            )
            for commit, plan in zip(commits, plans, strict=True):
                yield from _write_plan(commit, plan)
            answers = tuple([plan.answer for plan in plans])
            placed = rules.with_offsets(record, commits, answers)
            version = yield from save_over(placed, row, expected_version=expected_version)
            return SinkAnswer(replace(placed, version=version), answers)

        answer = await self._database.change(place, lock=Lock.TOPICS)
        for committed in answer.answers:
            self._notify(committed.watermarks)
        return answer

    @query
    def highest_object_id(self) -> Operation[int]:
        """Return the highest object id that was ever leased, or 0."""
        highest: int = yield diskless_tables.highest_id()
        return highest

    @query
    def object_totals(self) -> Operation[list[ObjectTotals]]:
        """Return the number of objects and their total bytes, by state and kind."""
        return [
            ObjectTotals(state, kind, count, int(size_bytes))
            for state, kind, count, size_bytes in sorted(
                map(tuple, (yield diskless_tables.totals()))
            )
        ]

    @query
    def referenced_keys(
        self, *, after: str, limit: int
    ) -> Operation[list[tuple[str, ObjectLease]]]:
        """Return (state, lease) of up to `limit` objects whose keys follow `after`, by key."""
        return [
            (state, ObjectLease(object_id, key))
            for state, object_id, key in (yield diskless_tables.keys_after(after, limit))
        ]

    @operation()
    def mark_for_deletion(
        self, *, pending_grace_ms: int, unreferenced_grace_ms: int, limit: int
    ) -> Operation[list[MarkedObject]]:
        """Mark unneeded objects as DELETING; return up to `limit` DELETING objects.

        Marks objects that were PENDING for `pending_grace_ms`, and COMMITTED objects that have had
        no extents for `unreferenced_grace_ms`. A later commit of a marked object is rejected.
        """
        left = limit - len((yield from diskless_tables.deleting(limit)))
        left -= yield diskless_tables.mark_pending(pending_grace_ms, left)
        yield diskless_tables.mark_unreferenced(unreferenced_grace_ms, left)
        yield diskless_tables.drop_answers(COMMIT_ANSWER_KEPT_MS, limit)
        return (yield from diskless_tables.deleting(limit))

    @operation()
    def forget_objects(self, object_ids: Sequence[int]) -> Operation[None]:
        """Delete the rows of DELETING objects whose bytes are deleted. Idempotent."""
        ids = [(object_id,) for object_id in object_ids]
        yield diskless_tables.forget(ids)
        yield diskless_tables.forget_answers(ids)


def _partitions(
    keys: Iterable[PartitionKey], topic_of: diskless.TopicOf
) -> Operation[dict[PartitionKey, diskless.PartitionRow]]:
    wanted = [key for key in keys if diskless.write_refusal(topic_of(key[0]), *key) is None]
    return (yield from diskless_tables.lock_or_add(wanted))


def _write_plan(commit: ObjectCommit, plan: rules.CommitPlan) -> Operation[None]:
    rows, object_id = plan.partitions, commit.object_id
    written = yield _write(
        list(rows.values()),
        [
            extent_row
            for key, added in plan.answer.extents.items()
            for extent_row in diskless_tables.rows_of(rows[key].partition_id, added)
        ],
        [
            diskless_tables.producer_row(rows[key[:2]].partition_id, key[2], state)
            for key, state in plan.producers.items()
        ],
        [
            aborted_row
            for key, ended in plan.aborted.items()
            for aborted_row in diskless_tables.aborted_rows_of(rows[key].partition_id, ended)
        ],
        [(object_id, encode_answer(plan.answer))],
        [(object_id, plan.state, "wal", commit.size_bytes, plan.references)],
    )
    if not written:
        raise Again(f"object {object_id} changed while its row was locked")
