"""Bulk history of a mirror: a Spark job that copies stored batches before the mirror runs.

    driver      slices of closed segments ── rounds ──> one commit of blobs for each round
                                               │             │
    executors       read, check, convert, stage┘             └──> positions, offset pairs

The records come from files or objects, and are converted as by the running mirror (`Converter`).
Tasks stage them as blobs of the exactly-once sink, which appends each round once.

The position `HISTORY` has the state of the job: its id, the number of the next round, and for each
partition the offsets of this round and the target's end before it. It is written before the round
is staged. After a crash the job repeats this round with the same number, so the sink appends it
only if it is missing. The transaction with the round's positions also has the state of the next
round. While the position exists, the mirror does not run. The last transaction removes it, so the
mirror continues at the offsets that the job reached. A failure before a round's commit removes it,
too, unless an earlier run may have committed the round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.client import Client, TransactionalProducer
from penstock.client.fetch import ReadPosition, Run
from penstock.client.producers import ProducerIdentity
from penstock.client.protocol import TopicAndPartition
from penstock.client.security import admin_security
from penstock.connect import positions
from penstock.connect.running import Stop
from penstock.mirror import syncs
from penstock.mirror.batches import Converter, Firsts, Origin
from penstock.mirror.local_records import stored_key
from penstock.mirror.log_directories import LogDirectories
from penstock.mirror.mirror_file import MirrorSpec
from penstock.mirror.rights import check_rights
from penstock.mirror.running import HISTORY, claim, follow_topics, position_key
from penstock.mirror.syncs import Located, Pair
from penstock.mirror.topics import MirrorRefused, clusters_of, source_topics
from penstock.records.columnar import EncodedBatch
from penstock.records.extents import READ_COMMITTED
from penstock.records.header import decode_header
from penstock.spark.admin_http import BrokerAdmins
from penstock.spark.reads.chunks import Chunk, Slice, file_chunks
from penstock.spark.reads.extents import ExtentSource, HttpExtents
from penstock.spark.reads.planning import slices_of
from penstock.spark.reads.reading import TaskReader
from penstock.spark.sink.blobs import (
    Blob,
    BlobParts,
    BlobStore,
    StagingLocation,
    Target,
    blob_from_json,
    staging_locations,
)
from penstock.spark.sink.commits import Commits
from penstock.spark.sink.options import COMMIT_TIMEOUT_SECONDS
from penstock.spark.sink.staging import Attempt, find_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_BYTES: Final = 1 << 30
"""Default of the bytes that one commit copies; a restarted job repeats at most one round."""
TASK_BYTES: Final = 64 << 20
BLOB_BYTES: Final = 32 << 20
"""Bytes after which a task closes a blob."""

Ranges = dict[TopicPartition, tuple[int, int]]
"""Offsets [start, end) of source partitions."""


class Extent(NamedTuple):
    """Offsets [start, end) of a source partition, and the target's end before they are copied."""

    start: int
    end: int
    down: int


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRun:
    """Run of a history job.

    Attributes:
        directories: log directories of the source; None reads files and objects of a Penstock
            source through `source_admin`.
        source_admin: admin addresses of the source's brokers, separated by commas.
        admin_url: admin addresses of the target's brokers, separated by commas.
        round_bytes: bytes of source files that one commit copies.
        stop: ends the run after its current round.
        report: receives a line about each round, and each change of the target's topics.
    """

    spec: MirrorSpec
    spark: SparkSession
    slots: int
    directories: LogDirectories | None
    source_admin: str
    admin_url: str
    stop: Stop
    round_bytes: int = ROUND_BYTES
    report: Callable[[str], None] = logger.info


class Copied(NamedTuple):
    """Result of a run: records and bytes, and the next offset of each source partition."""

    records: int
    size_bytes: int
    ends: dict[TopicPartition, int]


def run(job: HistoryRun) -> Copied:
    """Copy the history of all topics that the mirror's file selects.

    Raises:
        MirrorRefused: the mirror cannot run, or files belong to another topic of the same name.
        PenstockError: a cluster does not respond, or rejects a request. Run the job again to
            continue.
    """
    spec = job.spec
    with ExitStack() as opened:
        source = opened.enter_context(spec.source_client())
        target = opened.enter_context(spec.target_client())
        clusters = clusters_of(source, target)
        topics = source_topics(spec, source)
        if job.directories is not None:
            _check_ids(source, topics, job.directories)
        admins = BrokerAdmins(job.admin_url, security=admin_security(spec.target_security))
        opened.callback(admins.close)
        check_rights(spec, source, target, topics)
        staging_locations(admins)  # fails if the target is not Penstock
        producer, stored = claim(spec, target, clusters)
        follow_topics(spec, source, target, clusters, topics, stored, job.report)
        origin = None if spec.prefixed else Origin(clusters.source, clusters.target)
        history = _History(job, source, target, producer, admins, origin, stored)
        return history.copy(topics)


def _check_ids(source: Client, topics: Mapping[str, int], directories: LogDirectories) -> None:
    """Check that the files belong to the topics of the source.

    Raises:
        MirrorRefused: they belong to topics with the same names that were deleted.
    """
    known = source.metadata(set(topics)).topics
    wrong = [
        f"{part.files.path} has topic id {part.topic_id}, but the source has"
        f" {known[at.topic].topic_id}"
        for at, part in directories.parts.items()
        if at.topic in known and part.topic_id not in ("", str(known[at.topic].topic_id))
    ]
    if wrong:
        remedy = "Leave these directories out, or exclude the topics"
        raise MirrorRefused(f"{'; '.join(wrong)}. {remedy}")


class _History:
    """Rounds of one run, and the mirror's positions."""

    def __init__(
        self, job: HistoryRun, source: Client, target: Client, producer: TransactionalProducer,
        admins: BrokerAdmins, origin: Origin | None, stored: dict[str, Any],
    ) -> None:  # fmt: skip
        self._job = job
        self._spec = job.spec
        self._source = source
        self._target = target
        self._producer = producer
        self._admins = admins
        self._origin = origin
        self._stored = stored
        state = stored.get(HISTORY) or {"id": SYSTEM_RANDOMNESS.uuid().hex, "round": 0}
        self._id: str = state["id"]
        self._round: int = state["round"]
        self._begun = {
            TopicPartition(topic, partition): Extent(*offsets)
            for topic, partition, *offsets in state.get("extents", ())
        }
        application = f"mirror/{self._spec.name}/{self._id}"
        self._attempt = Attempt(application=application, batch_id=0, partition=0, number=0)
        self._commits = Commits(admins, application, timeout_seconds=COMMIT_TIMEOUT_SECONDS)

    def copy(self, topics: Mapping[str, int]) -> Copied:
        ranges = self._ranges(topics)
        begun = {at: (extent.start, extent.end) for at, extent in self._begun.items()}
        left = {
            at: (max(start, begun.get(at, (0, 0))[1]), end) for at, (start, end) in ranges.items()
        }
        rounds = [self._slices(begun)] if begun else []
        rounds += _grouped(self._slices(left), self._job.round_bytes)
        total = sum(item.size_bytes for slices in rounds for item in slices)
        fetched = sum(s.end - s.start for slices in rounds for s in slices if not s.extents)
        if fetched:
            self._job.report(
                f"{fetched:,} offsets are in none of the files, and are fetched from the source"
            )
        records = done = 0
        if rounds and not begun:
            self._store({}, [], rounds[0])
        for number, slices in enumerate(rounds):
            try:
                staged = self._stage(slices)
            except Exception:
                if number or not begun:  # no earlier run can have committed this round
                    self._store({}, [], [])
                raise
            if staged:
                self._commits.commit(self._round, self._id, [item.blob for item in staged])
            self._round += 1
            following = rounds[number + 1 :] if not self._job.stop.requested else []
            changed, pairs = self._reached(staged, self._ends(self._begun))
            self._store(changed, pairs, following[0] if following else [])
            records += sum(item.blob.records for item in staged)
            done += sum(item.size_bytes for item in slices)
            self._job.report(
                f"{records:,} records, {done / 1e6:,.0f} of {total / 1e6:,.0f} MB of files"
            )
            if not following:
                self._commits.forget()
                break
        reached = {
            at: self._stored.get(position_key(at.topic, at.partition), start)
            for at, (start, _) in ranges.items()
        }
        return Copied(records, done, reached)

    def _ranges(self, topics: Mapping[str, int]) -> Ranges:
        """Return the offsets that remain to be copied, by partition.

        A range ends at the last stable offset, or before it where the closed segments end.
        """
        directories = self._job.directories
        found: Ranges = {}
        for topic in topics:
            stable = self._source.list_offsets(topic, isolation=READ_COMMITTED)
            first = self._source.list_offsets(topic, "earliest")
            for partition, end in stable.items():
                at = TopicPartition(topic, partition)
                start = first[partition]
                if directories is not None:
                    part = directories.parts.get(at)
                    if part is None:
                        continue
                    start, end = min(start, part.start), min(end, part.end)
                start = self._stored.get(position_key(topic, partition), start)
                found[at] = (start, max(start, end))
        return found

    def _slices(self, ranges: Ranges) -> list[Slice]:
        with ExitStack() as opened:
            extents: ExtentSource
            if self._job.directories is not None:
                extents = self._job.directories
            else:
                security = admin_security(self._spec.source_security)
                extents = HttpExtents(self._job.source_admin, "read_committed", security)
                opened.callback(extents.close)
            return [item for at in sorted(ranges) for item in slices_of(at, *ranges[at], extents)]

    def _stage(self, slices: Sequence[Slice]) -> list[Staged]:
        """Run the tasks of a round; return its blobs in order."""
        spec = self._spec
        security = spec.target_security
        targets = {
            topic: find_topic(spec.target.bootstrap, spec.renamed(topic), security)
            for topic in {item.at.topic for item in slices}
        }
        size = sum(item.size_bytes for item in slices)
        tasks = _grouped(slices, min(TASK_BYTES, max(1, size // self._job.slots)))
        work = Staging(
            attempt=replace(self._attempt, batch_id=self._round),
            origin=self._origin,
            targets=targets,
            locations=staging_locations(self._admins),
            admin_url=self._job.admin_url,
            security=security,
            source=spec.source.bootstrap,
            source_admin=self._job.source_admin,
            source_security=spec.source_security,
        )
        context = self._job.spark.sparkContext
        found = context.parallelize(list(enumerate(tasks)), len(tasks)).flatMap(work).collect()
        return [Staged(blob_from_json(blob), firsts) for blob, firsts in found]

    def _reached(
        self, staged: Sequence[Staged], after: Mapping[TopicPartition, int]
    ) -> tuple[dict[str, Any], list[Located]]:
        """Return the positions and offset pairs after a round; `after` has the target's ends.

        A partition gets a pair for each batch, if all records that were appended to it meanwhile
        are those of the round. Otherwise others write to it. Then it gets only a pair for its end,
        and the position of `LocalRecords`.
        """
        batches: dict[TopicAndPartition, list[tuple[int, int]]] = {}
        for blob, firsts in staged:
            for section, first in zip(blob.sections, firsts, strict=True):
                written = batches.setdefault((section.topic, section.partition), [])
                written.append((first, section.records))
        changed: dict[str, Any] = {}
        pairs: list[Located] = []
        for at, (start, end, down) in self._begun.items():
            place = (at.topic, at.partition)
            written = batches.get((self._spec.renamed(at.topic), at.partition), [])
            known = position_key(*place) in self._stored or down == 0
            whole = after[at] - down == sum(count for _, count in written)
            if whole:
                found = (Pair(start, down), *syncs.batch_pairs(written, down))
                pairs += [(place, pair) for pair in found]
            pairs.append((place, Pair(end, after[at])))
            changed[position_key(*place)] = end
            if self._origin is not None and not (whole and known):
                free = down if known else 0
                changed[stored_key(place)] = self._stored.get(stored_key(place), free)
        return changed, pairs

    def _ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the target's end offsets, by partitions of the source."""
        asked = set(partitions)
        return {
            at: end
            for topic in {at.topic for at in asked}
            for partition, end in self._target.list_offsets(self._spec.renamed(topic)).items()
            if (at := TopicPartition(topic, partition)) in asked
        }

    def _store(
        self, changed: dict[str, Any], pairs: Sequence[Located], following: Sequence[Slice]
    ) -> None:
        """Store positions and offset pairs, and the state of the next round."""
        ranges = _ranges_of(following)
        downs = self._ends(ranges)
        self._begun = {at: Extent(*offsets, downs[at]) for at, offsets in ranges.items()}
        changed[HISTORY] = {
            "id": self._id, "round": self._round,
            "extents": [(at.topic, at.partition, *extent) for at, extent in self._begun.items()],
        } if following else None  # fmt: skip
        with self._producer.transaction() as transaction:
            topic = positions.positions_topic(self._spec.position_owner)
            transaction.write_arrow(topic, positions.rows_of(changed))
            if pairs:
                transaction.write_arrow(self._spec.syncs_topic, syncs.rows_of(pairs))
        self._stored |= changed


def _grouped(slices: Iterable[Slice], limit: int) -> list[list[Slice]]:
    """Return runs of slices of about `limit` bytes, in their order."""
    groups: list[list[Slice]] = []
    size = limit
    for item in slices:
        if size >= limit:
            groups.append([])
            size = 0
        groups[-1].append(item)
        size += item.load_bytes
    return groups


def _ranges_of(slices: Iterable[Slice]) -> Ranges:
    found: Ranges = {}
    for item in slices:
        found[item.at] = (found.get(item.at, (item.start, 0))[0], item.end)
    return found


class Staged(NamedTuple):
    """Staged blob, and the source offset of the first record of each of its sections."""

    blob: Blob
    firsts: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Work of an executor: converts stored batches and stages them as blobs.

    A call gets the number of a task with its slices, and yields each blob as JSON, with the source
    offset of the first record of each section.
    """

    attempt: Attempt
    origin: Origin | None
    targets: Mapping[str, Target]
    """Topics of the target, by the names of those of the source."""
    locations: tuple[StagingLocation, ...]
    admin_url: str
    security: Mapping[str, str]
    source: str
    source_admin: str
    source_security: Mapping[str, str]

    def __call__(self, task: tuple[int, Sequence[Slice]]) -> Iterator[tuple[str, list[int]]]:
        number, slices = task
        limit = min(BLOB_BYTES, *(place.blob_bytes_max for place in self.locations))
        admins = BrokerAdmins(self.admin_url, security=admin_security(self.security))
        with closing(admins):
            store = BlobStore(admins, self.locations)
            attempt = replace(self.attempt, partition=number)
            for index, (parts, firsts) in enumerate(self._blobs(slices, limit)):
                name = attempt.blob_name(index, SYSTEM_RANDOMNESS.uuid().hex)
                holders = store.put(name, parts.pieces, parts.size_bytes)
                yield parts.named(name, holders).to_json(), firsts

    def _blobs(self, slices: Sequence[Slice], limit: int) -> Iterator[tuple[BlobParts, list[int]]]:
        """Yield blobs, and the source offset of the first record of each of their sections.

        A section has one batch, because the broker appends a section as a whole.
        """
        converter = Converter(self.origin)
        parts, starts = BlobParts(), list[int]()
        for item, chunk in self._chunks(slices):
            at, firsts = item.at, Firsts()
            run = Run(
                partition=at.partition, data=chunk.data, start_offset=item.start, end_offset=None,
                behind=ReadPosition(-1, chunk.next_offset),
                aborted=item.aborted if chunk.aborted is None else chunk.aborted,
            )  # fmt: skip
            target, nobody = self.targets[at.topic], ProducerIdentity()
            for batch in converter.batches(at.topic, run, nobody, target.name, firsts, item.end):
                data = memoryview(batch.data)
                if parts.size_bytes and parts.size_bytes + len(data) > limit:
                    yield parts, starts
                    parts, starts = BlobParts(), []
                encoded = EncodedBatch(data=data, record_count=decode_header(data).record_count)
                parts.add(target, at.partition, [encoded])
                starts.append(firsts[at.partition][-1][0])
        if parts.size_bytes:
            yield parts, starts

    def _chunks(self, slices: Sequence[Slice]) -> Iterator[tuple[Slice, Chunk]]:
        """Yield the batches of slices. Bytes of a file that are missing come from a broker."""

        def extents() -> HttpExtents:
            return HttpExtents(
                self.source_admin, "read_committed", admin_security(self.source_security)
            )

        reader = TaskReader(
            ("value",), bootstrap=self.source, fail_on_data_loss=False, isolation=READ_COMMITTED,
            security=self.source_security, extents=extents if self.source_admin else lambda: None,
        )  # fmt: skip
        for item in slices:
            here, size = item.start, item.size_bytes
            if item.store or not item.extents:
                yield from reader.chunks([item])
                continue
            for _, chunk in file_chunks([item]):
                if chunk is not None:
                    here, size = chunk.next_offset, size - len(chunk.data)
                    yield item, chunk
            if size and here < item.end:
                yield from reader.chunks([replace(item, start=here, extents=())])
