"""Roll-forward of an intent: appends its remaining records, syncs, and saves the row as done.

Worker threads read, check and stamp a few megabytes of staged bytes at a time; the event loop
appends them in short turns between other requests. Before each append to a local log, the last
sequence of the producer must be the one that the previous append left. Otherwise a full disk may
have undone appends, and the log would accept a gap, because an unknown producer may begin with any
sequence.

Transactional batches are appended by a client of this broker, to all kinds of partitions.
`transaction.py` describes this, and how an attempt finds out the outcome of earlier attempts.

Timestamps are validated against the time of the intent, as in the check before it: a recorded
commit must not fail because it is finished days later.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from penstock.base.errors import PenstockError, RetriableError
from penstock.broker.batch_commits.commit import (
    CLIENT_ID,
    SinkContext,
    SinkCounters,
    appended_records,
    has_producer,
    key_of,
    renewed,
    schedule,
)
from penstock.broker.batch_commits.manifest import (
    InvalidCommit,
    Manifest,
    TargetBehind,
    TopicIdPartition,
    decode_manifest,
)
from penstock.broker.batch_commits.pieces import Piece, PieceReader, check_blobs
from penstock.broker.net.errors import NoObjectStore
from penstock.broker.net.listeners import Identity, own_address
from penstock.control.values.topics import SEQUENCES
from penstock.partitions import LocalPartition, ReplicatedPartition
from penstock.records import split_batches
from penstock.storage import AppendBacklog
from penstock.storage.log.validation import prepared

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.broker.partitions.registry import ServedTopic
    from penstock.client.appender import Appender
    from penstock.client.producer_partitions import ProducerPartition
    from penstock.client.producers import ProducerIdentity
    from penstock.control import SinkCommit, SinkTarget
    from penstock.diskless.topics.service import DisklessService
    from penstock.partitions import Partition
    from penstock.storage import LogConfig, PartitionLog


# Appends of a commit to replicated partitions, whichever broker leads them.
#
# The broker appends as a client with an idempotent producer, even to partitions that it leads. A
# quorum acknowledges each batch, and the client retries batches at a new leader. The leader reports
# the last sequence of a producer (DescribeProducers) only once its records are committed, so that
# no failover can revoke them. A client serves one attempt; the leader ignores batches of an earlier
# attempt as duplicates.
#
# Source: KIP-98, KIP-664.


class ReplicatedTarget(Struct, frozen=True, kw_only=True):
    topic: str
    partition: int
    config: LogConfig
    producer_epoch: int = 0
    transactional_id: str | None = None

    def producer(self, producer_id: int) -> ProducerPartition:
        from penstock.client.producer_partitions import ProducerPartition

        return ProducerPartition(
            producer_id,
            self.producer_epoch,
            self.topic,
            self.partition,
            idempotent=True,
            transactional_id=self.transactional_id,
        )


class ReplicatedAppends:
    """Appends of one attempt to replicated partitions. Belongs to the event loop."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._appender: Appender | None = None

    async def last_sequence(self, target: ReplicatedTarget, producer_id: int) -> int | None:
        """Return a producer's last committed sequence; None for an unknown producer.

        Raises:
            PenstockError: no leader responds in time.
        """
        appender = await self.start()
        return await appender.last_sequence(target.producer(producer_id))

    def append(
        self, target: ReplicatedTarget, piece: Piece
    ) -> asyncio.Future[PenstockError | None]:
        """Append a piece after earlier ones.

        The future ends with None once the piece is committed, or with the error.
        """
        ended: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

        def done(error: PenstockError | None) -> None:
            if not ended.done():
                ended.set_result(error)

        if self._appender is None:
            raise RuntimeError("append() requires start() or last_sequence() first")
        from penstock.client.producer_partitions import Pieces

        batches, position = [], 0
        for header in split_batches(piece.data):
            end = position + header.size_bytes
            batches.append(Pieces(piece.data[position:end], header.record_count))
            position = end
        refused = self._appender.append(
            target.producer(piece.run.producer_id), batches, piece.first_sequence, done
        )
        if refused is not None:
            raise refused
        return ended

    async def close(self) -> None:
        if self._appender is not None:
            await self._appender.stop(0)

    async def start(self) -> Appender:
        if self._appender is None:
            from penstock.client.appender import Appender

            self._appender = Appender(
                own_address(self._identity),
                client_id=CLIENT_ID,
                security=self._identity.as_client(),
            )
            await self._appender.start()
        return self._appender


# Diskless part of a commit: staged sections become objects, committed in one transaction.
#
#     staged blobs ──> pieces ──> objects (PENDING) ──> one transaction: offsets, index, row `done`
#
# After this transaction readers see the whole diskless part, before it nothing. A commit that
# writes only diskless partitions therefore has no intent: its row shows whether it took effect. A
# commit that also writes partitions on brokers first saves its intent and appends to them; the
# transaction then ends the commit.
#
# A failed attempt leaves PENDING objects, which the sweeper deletes; the next attempt writes
# others.


def service_of(context: SinkContext) -> DisklessService:
    """Return the broker's diskless service.

    Raises:
        NoObjectStore: the broker has no object store.
    """
    if context.diskless is None:
        raise NoObjectStore("this broker has no object store")
    return context.diskless


def check_size(
    context: SinkContext, manifest: Manifest, remotes: Collection[TopicIdPartition]
) -> None:
    if not remotes:
        return
    size_bytes, most = manifest.size_of(remotes), service_of(context).sink_bytes_max
    if size_bytes > most:
        raise InvalidCommit(
            f"the commit has {size_bytes} bytes for diskless topics, at most {most} are allowed:"
            " commit smaller batches, or raise diskless.buffer.max.bytes"
        )


async def commit_objects(
    done: SinkCommit,
    manifest: Manifest,
    remotes: Mapping[TopicIdPartition, Partition],
    *,
    context: SinkContext,
    directory: Path,
    counters: SinkCounters,
) -> SinkCommit:
    """Write the sections of diskless partitions to objects, and commit them with the query's row.

    `remotes` are the diskless partitions; `done` is the row to save. Returns the row as saved, with
    the offsets.

    Raises:
        EntryRefused: a topic was deleted; nothing was committed.
        PenstockError, OSError: the commit failed, or its outcome is unknown.
    """
    service = service_of(context)
    runs = schedule(manifest, done.targets, dict.fromkeys(remotes, 0))
    configs = {key: remote.config for key, remote in remotes.items()}
    reader = PieceReader(directory, runs, configs)
    records = size_bytes = 0
    async with service.staged_objects(sum([run.end - run.position for run in runs])) as objects:
        while pieces := await asyncio.to_thread(reader.read):
            for piece in pieces:
                config = configs[piece.run.target]
                # Validate with the time at which the commit began, as in the first check.
                batches, headers = await asyncio.to_thread(
                    prepared, piece.data, config, done.updated_ms, internal=True
                )
                append_time = config.message_timestamp_type != "CreateTime"
                await objects.take(*piece.run.target, batches, headers, append_time)
                records += piece.records
                size_bytes += len(batches)
        commits = await objects.finish()
        done = replace(done, updated_ms=context.clock.now_ms())
        saved = await service.commit_sink(done, commits)
    counters.records += records
    counters.size_bytes += size_bytes
    return saved


UNSYNCED_BYTES_MAX: Final = 16 << 20
"""Maximum appended bytes of a commit that wait for their sync before more are read."""
RENEWALS_MAX: Final = 3
"""Maximum number of times that an attempt replaces the producers of logs that lost records."""

logger = logging.getLogger(__name__)

_BACKLOG_WAITS: Final = 5


class AppendsUndone(RetriableError):
    """Appends of the commit were undone, or another client used its producer."""


class _Survey:
    __slots__ = ("appended", "behind", "logs", "remotes", "replicated", "transaction_epoch")

    def __init__(self) -> None:
        self.logs: dict[TopicIdPartition, PartitionLog] = {}
        self.appended: dict[TopicIdPartition, int] = {}
        self.behind: set[TopicIdPartition] = set()
        self.remotes: dict[TopicIdPartition, Partition] = {}
        self.replicated: dict[TopicIdPartition, ReplicatedTarget] = {}
        self.transaction_epoch: int | None = None


class RollForward:
    """Attempt to finish an intent; the caller ensures that it is the only one."""

    def __init__(
        self,
        context: SinkContext,
        directory: Path,
        counters: SinkCounters,
        *,
        save: Callable[[SinkCommit], Awaitable[SinkCommit]],
    ) -> None:
        """Create an attempt; `save` stores the next version of a row and returns it."""
        self._context = context
        self._directory = directory
        self._counters = counters
        self._save = save
        self._replicated = ReplicatedAppends(context.identity)
        self._unsynced: deque[tuple[asyncio.Future[PenstockError | None], int]] = deque()
        self._unsynced_bytes = 0
        self._last: dict[TopicIdPartition, int | None] = {}
        self._offsets: dict[TopicIdPartition, tuple[int, int]] = {}

    async def finish(self, row: SinkCommit) -> SinkCommit:
        """Append the remaining records and save the row as done, with its diskless part if any.

        Raises:
            PenstockError: the intent is not finished; another attempt can continue.
        """
        manifest = await asyncio.to_thread(decode_manifest, row.manifest)
        try:
            if manifest.transactional:
                survey = await self._transact(row, manifest)
            else:
                row, survey = await self._with_producers(row)
                await self._append_all(row, manifest, survey)
        finally:
            await self._replicated.close()
        done = replace(
            row,
            state="done",
            manifest=b"",
            targets=tuple(self._ended(target, survey) for target in row.targets),
            updated_ms=self._context.clock.now_ms(),
        )
        if not survey.remotes:
            return await self._save(done)
        return await commit_objects(
            done,
            manifest,
            survey.remotes,
            context=self._context,
            directory=self._directory,
            counters=self._counters,
        )

    async def _transact(self, row: SinkCommit, manifest: Manifest) -> _Survey:
        """Commit the batch as one transaction, unless an earlier attempt did."""
        survey = _Survey()
        lacking = await asyncio.to_thread(self._lacking, manifest)

        from penstock.broker.batch_commits.transaction import SinkTransaction

        transaction = SinkTransaction(self._context, row)
        try:
            if lacking is None:
                await transaction.begin()
            if await transaction.is_committed():
                return survey
            if lacking is not None:
                raise lacking
            row = self._in_transaction(row, transaction.lend(), survey)
            try:
                await self._replicated.start()
                await self._append_all(row, manifest, survey)
                topics = {target.topic for target in survey.replicated.values()}
                if topics:
                    await transaction.commit(topics)
            except (PenstockError, OSError):
                await transaction.abort()
                raise
        finally:
            transaction.close()
        return survey

    def _lacking(self, manifest: Manifest) -> InvalidCommit | None:
        try:
            check_blobs(self._directory, manifest.blobs)
        except InvalidCommit as error:
            return error
        return None

    def _in_transaction(
        self, row: SinkCommit, producer: ProducerIdentity, survey: _Survey
    ) -> SinkCommit:
        survey.transaction_epoch = producer.epoch
        written = [target for target in row.targets if target.records]
        for target in written:
            topic = self._context.partitions.topics_by_id.get(target.topic_id.bytes)
            if topic is None:
                self._skip(target.topic, target.partition, row)
                continue
            key, name = key_of(target), topic.topic.name
            survey.replicated[key] = ReplicatedTarget(
                topic=name,
                partition=target.partition,
                config=self._context.store.config_of(name),
                producer_epoch=producer.epoch,
                transactional_id=producer.transactional_id,
            )
            survey.appended[key] = 0
        targets = [
            replace(target, producer_id=producer.producer_id, base_sequence=0) for target in written
        ]
        return replace(row, targets=tuple(targets))

    async def _with_producers(self, row: SinkCommit) -> tuple[SinkCommit, _Survey]:
        for _ in range(RENEWALS_MAX):
            survey = await self._survey(row)
            if not survey.behind:
                return row, survey
            count = len(survey.behind)
            self._counters.renewed += count
            ids = await self._context.control.allocate_producer_ids(count)
            targets = renewed(row.targets, frozenset(survey.behind), iter(ids))
            row = await self._save(replace(row, targets=targets))
        raise AppendsUndone(f"the logs of query {row.query_id!r} repeatedly lost their ends")

    async def _survey(self, row: SinkCommit) -> _Survey:
        survey = _Survey()
        for target in row.targets:
            if not target.records:
                continue
            key = key_of(target)
            topic = self._context.partitions.topics_by_id.get(target.topic_id.bytes)
            if topic is None:
                self._skip(target.topic, target.partition, row)
                continue
            if not has_producer(target):
                survey.remotes[key] = self._context.partitions.partition_of(topic, target.partition)
                continue
            found = target_of(self._context, topic, target.partition)
            if isinstance(found, ReplicatedTarget):
                survey.replicated[key] = found
                last = await self._replicated.last_sequence(found, target.producer_id)
            else:
                log = survey.logs[key] = self._context.partitions.with_log(
                    topic.topic.name, target.partition
                ).log
                last = self._last[key] = last_sequence(log, target.producer_id)
            try:
                survey.appended[key] = appended_records(target, last)
            except TargetBehind as behind:
                logger.warning("query %r: %s; it gets a new producer", row.query_id, behind)
                survey.behind.add(key)
        return survey

    def _skip(self, topic: str, partition: int, row: SinkCommit) -> None:
        self._counters.skipped += 1
        logger.warning(
            "query %r, batch %d: %s-%d is skipped because its topic was deleted",
            row.query_id,
            row.batch_id,
            topic,
            partition,
        )

    async def _append_all(self, row: SinkCommit, manifest: Manifest, survey: _Survey) -> None:
        runs = schedule(manifest, row.targets, survey.appended)
        configs = {
            **{key: log.config for key, log in survey.logs.items()},
            **{key: target.config for key, target in survey.replicated.items()},
        }
        reader = PieceReader(
            self._directory, runs, configs, transaction_epoch=survey.transaction_epoch
        )
        while pieces := await asyncio.to_thread(reader.read):
            for piece in pieces:
                log = survey.logs.get(piece.run.target)
                if log is not None and self._is_deleted(log):
                    del survey.logs[piece.run.target]
                    where = log.topic_partition
                    self._skip(where.topic, where.partition, row)
                elif log is not None:
                    await self._append(log, piece, row)
                elif piece.run.target in survey.replicated:
                    self._append_replicated(survey.replicated[piece.run.target], piece)
            if survey.logs:
                own = [len(piece.data) for piece in pieces if piece.run.target in survey.logs]
                self._flush(sum(own))
            while self._unsynced_bytes > UNSYNCED_BYTES_MAX:
                await self._wait_for_oldest()
        if survey.logs:
            self._flush(0)
        while self._unsynced:
            await self._wait_for_oldest()

    def _append_replicated(self, target: ReplicatedTarget, piece: Piece) -> None:
        self._unsynced.append((self._replicated.append(target, piece), len(piece.data)))
        self._unsynced_bytes += len(piece.data)
        self._counters.records += piece.records
        self._counters.size_bytes += len(piece.data)

    def _is_deleted(self, log: PartitionLog) -> bool:
        return (
            log.closed is not None
            and log.topic_id.bytes not in self._context.partitions.topics_by_id
        )

    async def _append(self, log: PartitionLog, piece: Piece, row: SinkCommit) -> None:
        for _ in range(_BACKLOG_WAITS):
            try:
                self._append_now(log, piece, row)
            except AppendBacklog:
                self._flush(0)
                while self._unsynced:
                    await self._wait_for_oldest()
            else:
                return
        self._append_now(log, piece, row)

    def _append_now(self, log: PartitionLog, piece: Piece, row: SinkCommit) -> None:
        key = piece.run.target
        last = last_sequence(log, piece.run.producer_id)
        if last != self._last[key]:
            raise AppendsUndone(
                f"{log.topic_partition} is at sequence {last} of producer"
                f" {piece.run.producer_id}, but the commit left it at {self._last[key]}"
            )
        by_record = log.config.message_timestamp_type == "CreateTime"
        now_ms = row.updated_ms if by_record else self._context.clock.now_ms()
        result = log.append(piece.data, now_ms=now_ms, internal=True)
        self._last[key] = (piece.first_sequence + piece.records - 1) % SEQUENCES
        base_offset, _ = self._offsets.get(key, (result.base_offset, 0))
        self._offsets[key] = base_offset, log.log_end_offset
        self._counters.records += piece.records
        self._counters.size_bytes += len(piece.data)

    def _flush(self, size_bytes: int) -> None:
        synced: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

        def durable(error: PenstockError | None) -> None:
            if not synced.done():
                synced.set_result(error)

        self._unsynced.append((synced, size_bytes))
        self._unsynced_bytes += size_bytes
        self._context.commits.flush_then(durable)

    async def _wait_for_oldest(self) -> None:
        synced, size_bytes = self._unsynced.popleft()
        error = await synced
        self._unsynced_bytes -= size_bytes
        if error is not None:
            raise error

    def _ended(self, target: SinkTarget, survey: _Survey) -> SinkTarget:
        """Return the target with the offset range of its records, for the response.

        The range is known only if this attempt appended all records of the target.
        """
        offsets = self._offsets.get(key_of(target))
        if offsets is None or survey.appended.get(key_of(target)) != 0:
            return target
        return replace(target, base_offset=offsets[0], next_offset=offsets[1])


def target_of(context: SinkContext, topic: ServedTopic, index: int) -> Partition | ReplicatedTarget:
    """Return the object for appends to a partition: a local partition, or a replicated target.

    Raises:
        NotLeader: another broker leads the partition, which is not replicated.
    """
    found = topic.partitions[index]
    if found is None and not topic.topic.partitions[index].has_epochs:
        return context.partitions.partition_of(topic, index)
    if isinstance(found, LocalPartition) and not isinstance(found, ReplicatedPartition):
        return found
    name = topic.topic.name
    return ReplicatedTarget(topic=name, partition=index, config=context.store.config_of(name))


def last_sequence(log: PartitionLog, producer_id: int) -> int | None:
    """Return a producer's last sequence; None for an unknown producer."""
    log.load()
    return log.producer_states.last_sequence(producer_id)
