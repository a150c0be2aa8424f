"""Runner of a mirror: copies batches, positions and offset pairs in transactions of the target.

The positions are those of `penstock.connect.positions`. A transaction has batches of any number of
partitions, the new positions of these partitions, and their offset pairs. After a failure the
mirror starts again from the committed positions, so each record is written once.

A record's header `ORIGIN` names the cluster that it was first written to. Records that come from
the target are skipped, so two mirrors in opposite directions do not return records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from penstock.base.errors import (
    CorruptError,
    InvalidError,
    PenstockError,
    RetriableError,
    UnavailableError,
)
from penstock.base.retry import Backoff
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.client import Client, TransactionalProducer
from penstock.client.errors import OffsetOutOfRange, UnknownTopic
from penstock.client.fetch import Run
from penstock.client.produce import Batch
from penstock.client.producers import ProducerIdentity
from penstock.client.protocol import TopicAndPartition
from penstock.connect import positions
from penstock.connect.running import Stop
from penstock.mirror import groups, syncs
from penstock.mirror.batches import Converter, Firsts, Origin
from penstock.mirror.local_records import LocalRecords, stored_key
from penstock.mirror.mirror_file import MirrorSpec
from penstock.mirror.reading import Fetched, Reading
from penstock.mirror.rights import check_rights
from penstock.mirror.syncs import Located, Pair
from penstock.mirror.topics import (
    DIRECTION,
    Clusters,
    MirrorRefused,
    check_direction,
    clusters_of,
    direction,
    source_topics,
    steps,
)
from penstock.mirror.watching import Watch
from penstock.records.extents import READ_COMMITTED

TRANSACTION_BYTES: Final = 16 << 20
"""Bytes of fetched batches above which a transaction is committed."""
TRANSACTION_TIMEOUT_MS: Final = 60_000
CALL_MS: Final = 8_000
"""Time for a call with its retries, after which the status has the error."""
LINGER_SECONDS: Final = 0.05
"""Time for which a transaction waits for more batches."""
TICK_SECONDS: Final = 0.25
REJECTED_SECONDS: Final = 30.0
"""Time after which a topic that the target rejected is tried again."""
HISTORY: Final = "history"
"""Position with the state of a history job that has not finished (`mirror/history.py`)."""
STEADY_SECONDS: Final = 30.0
"""Time without a failure after which the pauses between attempts start from the beginning."""
BACKOFF: Final = Backoff(first_ms=100.0, ceiling_ms=5_000.0, steady=0.5)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRun:
    """Run of a mirror.

    Attributes:
        once: whether the run ends when all records that were there at its start are mirrored.
        report: receives a line about each change of topics, settings and ACLs of the target.
    """

    spec: MirrorSpec
    watch: Watch
    stop: Stop
    once: bool = False
    report: Callable[[str], None] = logger.info
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    """End offsets of the source's topics at the start of a run with `once`."""
    rejected: dict[str, _Rejection] = field(default_factory=dict)
    """Topics that are not mirrored for now."""


class _Rejection(Exception):
    """Write to a topic that the target rejected, or whose records cannot be converted."""

    def __init__(self, topic: str, cause: PenstockError) -> None:
        super().__init__(str(cause))
        self.topic = topic
        self.cause = cause
        self.until = SYSTEM_CLOCK.monotonic() + REJECTED_SECONDS


def run(run: MirrorRun) -> None:
    """Run a mirror until it is stopped, or with `once` until it has caught up.

    Raises:
        PenstockError: the mirror has failed; the status has the cause.
    """
    failures, since = 0, 0.0
    limit = run.spec.options.retry_timeout_seconds
    watch = run.watch
    while not run.stop.requested:
        began = SYSTEM_CLOCK.monotonic()
        try:
            if _attempt(run):
                break
            failures = 0
        except _Rejection as rejection:
            run.rejected[rejection.topic] = rejection
            logger.warning("mirror %s: %s", run.spec.name, rejection)
        except (RetriableError, UnavailableError, OffsetOutOfRange, UnknownTopic) as error:
            now = SYSTEM_CLOCK.monotonic()
            if not failures or now - began > STEADY_SECONDS:
                failures, since = 0, now
            failures += 1
            if 0 <= limit <= now - since:
                watch.enter("FAILED", str(error))
                raise
            watch.retrying(str(error))
            logger.warning("mirror %s: %s", run.spec.name, error)
            run.stop.pause(BACKOFF.pause_seconds(failures, chance=SYSTEM_RANDOMNESS.uniform()))
        except Exception as error:
            fenced = getattr(error, "code", "") == "producer_fenced"
            cause = f"another run of mirror {run.spec.name} has replaced this one"
            watch.enter("FAILED", cause if fenced else str(error))
            raise
    if run.once and run.rejected:
        watch.enter("FAILED", "; ".join(map(str, run.rejected.values())))
        raise next(iter(run.rejected.values())).cause
    watch.enter("STOPPED")


def _attempt(run: MirrorRun) -> bool:
    """Mirror until the run ends; return False if another attempt has to follow.

    It follows if the topics of the source have changed, or if a rejected topic is tried again.
    """
    spec = run.spec
    with ExitStack() as opened:
        source = opened.enter_context(spec.source_client(api_timeout_ms=CALL_MS))
        target = opened.enter_context(spec.target_client(api_timeout_ms=CALL_MS))
        clusters = clusters_of(source, target)
        topics = source_topics(spec, source)
        if not run.rejected and not run.watch.status.status.batches:
            check_rights(spec, source, target, topics)
        producer, stored = claim(spec, target, clusters)
        if HISTORY in stored:
            raise MirrorRefused(
                f"a history job of mirror {spec.name} has not finished. Run `penstock mirror"
                " history` with the same file until it ends"
            )
        transfer = _Transfer(run, source, target, producer, clusters, topics, stored)
        transfer.follow_topics()
        transfer.load_pairs()
        now, rejected = SYSTEM_CLOCK.monotonic(), run.rejected
        for topic in [name for name, rejection in rejected.items() if rejection.until <= now]:
            del rejected[topic]
        mirrored = topics.keys() - rejected.keys()
        starts = _starts(run, source, mirrored, stored)
        ends = _ends(run, source, mirrored) if run.once else None
        reader = spec.source_client()
        with closing(Reading(reader, starts, ends)) as reading:
            places = {(t, p): offset for t, found in starts.items() for p, offset in found.items()}
            opened.callback(run.watch.ended)
            stopped = {
                (topic, partition): f"rejected: {rejection}"
                for topic, rejection in rejected.items()
                for partition in range(topics.get(topic, 0))
            }
            run.watch.began(places, (reader, target), stopped)
            return transfer.run(reading, places)


def claim(
    spec: MirrorSpec, target: Client, clusters: Clusters
) -> tuple[TransactionalProducer, dict[str, Any]]:
    """Return the mirror's producer, which fences earlier runs, and the stored positions.

    Raises:
        MirrorRefused: the positions belong to other clusters.
        PenstockError: the target does not respond, or rejects a request.
    """
    producer = target.transactional(spec.transactional_id, timeout_ms=TRANSACTION_TIMEOUT_MS)
    producer.begin()  # ends an open transaction of an earlier run
    producer.abort()
    factor = spec.target.replication_factor
    stored = positions.load(target, spec.position_owner, factor)
    check_direction(spec, clusters, stored)
    for topic, configs in (
        (spec.syncs_topic, syncs.CONFIGS), (spec.checkpoints_topic, groups.CONFIGS)
    ):  # fmt: skip
        target.create_topic(topic, 1, configs, replication_factor=factor, exist_ok=True)
    return producer, stored


def follow_topics(
    spec: MirrorSpec, source: Client, target: Client, clusters: Clusters,
    topics: Mapping[str, int], stored: dict[str, Any], report: Callable[[str], None],
) -> None:  # fmt: skip
    """Bring topics, settings and ACLs of the target in line with the source; update `stored`."""
    facts = direction(spec, clusters, topics)
    changed = {} if stored.get(DIRECTION) == facts else {DIRECTION: facts}
    for step in steps(spec, source, target, topics, stored):
        step.act()
        if step.text:
            report(step.text)
        changed |= step.stored
    if changed:
        topic = positions.positions_topic(spec.position_owner)
        target.write_arrow(topic, positions.rows_of(changed))
        stored |= changed


def _starts(
    run: MirrorRun, source: Client, topics: Iterable[str], stored: Mapping[str, Any]
) -> dict[str, dict[int, int]]:
    """Return the next offset of each partition.

    Raises:
        MirrorRefused: a partition ends before its position.
    """
    starts: dict[str, dict[int, int]] = {}
    for topic in topics:
        first = source.list_offsets(topic, "earliest")
        after = source.list_offsets(topic)
        for partition, offset in first.items():
            known = stored.get(position_key(topic, partition), offset)
            if known < offset:
                logger.warning(
                    "mirror %s: %s-%d: offsets %d to %d were deleted from the source before they"
                    " were mirrored", run.spec.name, topic, partition, known, offset - 1,
                )  # fmt: skip
                known = offset
            if known > after[partition]:
                raise MirrorRefused(
                    f"{topic}-{partition} was mirrored up to offset {known}, but ends at"
                    f" {after[partition]} in the source: the topic was created again or has lost"
                    " records. Give the mirror another name to mirror it from the beginning"
                )
            starts.setdefault(topic, {})[partition] = known
    return starts


def _ends(run: MirrorRun, source: Client, topics: Collection[str]) -> dict[str, dict[int, int]]:
    for topic in topics:
        if topic not in run.ends:
            run.ends[topic] = source.list_offsets(topic, isolation=READ_COMMITTED)
    return {topic: run.ends[topic] for topic in topics}


def position_key(topic: str, partition: int) -> str:
    """Return the name of the position of a source partition."""
    return f"at/{topic}/{partition}"


class _Transfer:
    """Transfer of one attempt: its transactions, groups and topics."""

    def __init__(
        self, run: MirrorRun, source: Client, target: Client, producer: TransactionalProducer,
        clusters: Clusters, topics: dict[str, int], stored: dict[str, Any],
    ) -> None:  # fmt: skip
        self._syncs = syncs.Syncs()
        self._run = run
        self._spec = run.spec
        self._source = source
        self._target = target
        self._producer = producer
        self._clusters = clusters
        self._topics = topics
        self._stored = stored
        self._positions: dict[TopicAndPartition, int] = {}
        origin = None if run.spec.prefixed else Origin(clusters.source, clusters.target)
        self._converter = Converter(origin)
        self._local = None if run.spec.prefixed else LocalRecords(target, clusters.source)
        self._groups = groups.Groups(run.spec, source, target, clusters, self._syncs, self._local)
        now = SYSTEM_CLOCK.monotonic()
        self._groups_at = now
        self._topics_at = now + run.spec.options.topics_seconds

    def load_pairs(self) -> None:
        """Load the offset pairs, and the offsets below which the target has no local records."""
        self._syncs.load(self._target, self._spec.syncs_topic)
        for place, (_, downs) in self._syncs.pairs.items():
            if self._local is not None:
                self._local.start(place, self._stored.get(stored_key(place), downs[-1]))

    def follow_topics(self) -> None:
        """Bring topics, settings and ACLs of the target in line with the source."""
        follow_topics(
            self._spec, self._source, self._target, self._clusters, self._topics, self._stored,
            self._run.report,
        )  # fmt: skip

    def run(self, reading: Reading, places: Mapping[TopicAndPartition, int]) -> bool:
        """Transfer batches until the run ends; return False if another attempt has to follow."""
        self._positions = dict(places)
        stop = self._run.stop
        while not stop.requested:
            fetched = self._gather(reading)
            if fetched:
                self._commit(fetched)
            elif self._run.once and reading.done:
                self._transfer_groups()
                return True
            now = SYSTEM_CLOCK.monotonic()
            if any(rejection.until <= now for rejection in self._run.rejected.values()):
                return False
            if now >= self._groups_at:
                self._transfer_groups()
                self._groups_at = SYSTEM_CLOCK.monotonic() + self._spec.options.groups_seconds
            if now >= self._topics_at:
                if source_topics(self._spec, self._source) != self._topics:
                    return False
                self.follow_topics()
                self._topics_at = SYSTEM_CLOCK.monotonic() + self._spec.options.topics_seconds
            if reading.done:  # no topics, or all are rejected
                stop.pause(TICK_SECONDS)
        return True

    def _gather(self, reading: Reading) -> list[Fetched]:
        """Return the batches of the next transaction; empty if none arrive."""
        found: list[Fetched] = []
        size, until = 0, 0.0
        wait = TICK_SECONDS
        while wait > 0 and size < TRANSACTION_BYTES and (item := reading.take(wait)) is not None:
            now = SYSTEM_CLOCK.monotonic()
            until = until if found else now + LINGER_SECONDS
            found.append(item)
            size += len(item.run.data)
            wait = until - now
        return found

    def _commit(self, fetched: list[Fetched]) -> None:
        by_topic: dict[str, list[Run]] = {}
        for topic, run in fetched:
            by_topic.setdefault(topic, []).append(run)
        after: dict[TopicAndPartition, int] = {}
        pairs: list[Located] = []
        local: dict[str, int | None] = {}
        records = 0
        with self._producer.transaction() as transaction:
            for topic, runs in by_topic.items():
                to = self._spec.renamed(topic)
                firsts: Firsts = {}
                batches = partial(self._batches, topic, runs, to, firsts)
                try:
                    report = transaction.write_batches(to, batches)
                except (OffsetOutOfRange, UnknownTopic):
                    raise
                except (InvalidError, CorruptError) as error:
                    raise _Rejection(topic, error) from error
                records += report.records
                ends = {run.partition: run.behind.offset for run in runs}
                after |= {(topic, partition): offset for partition, offset in ends.items()}
                offsets = self._written(topic, ends, report.offsets)
                added, changed = self._after_write(topic, ends, firsts, offsets)
                pairs += added
                local |= changed
            stored = {position_key(*place): offset for place, offset in after.items()} | local
            transaction.write_arrow(
                positions.positions_topic(self._spec.position_owner), positions.rows_of(stored)
            )
            if pairs:
                transaction.write_arrow(self._spec.syncs_topic, syncs.rows_of(pairs))
        for place, pair in pairs:
            self._syncs.add(place, pair)
        self._positions |= after
        self._stored |= stored
        self._run.watch.committed(records, after)

    def _batches(
        self, topic: str, runs: list[Run], to: str, firsts: Firsts, identity: ProducerIdentity
    ) -> Iterator[Iterable[Batch]]:
        for run in runs:
            yield self._converter.batches(topic, run, identity, to, firsts)

    def _written(
        self, topic: str, ends: Mapping[int, int], offsets: Mapping[int, tuple[int, int]]
    ) -> dict[int, tuple[int, int]]:
        """Return the first and last offsets that were written, by partition; -1 if unknown.

        If all records of a partition came from the target, they are the target's end, and one less.
        """
        skipped = [partition for partition in ends if partition not in offsets]
        if not skipped:
            return dict(offsets)
        there = self._target.list_offsets(self._spec.renamed(topic), partitions=skipped)
        return dict(offsets) | {p: (end, end - 1) for p, end in there.items()}

    def _after_write(
        self, topic: str, ends: Mapping[int, int], firsts: Firsts,
        offsets: Mapping[int, tuple[int, int]],
    ) -> tuple[list[Located], dict[str, int | None]]:  # fmt: skip
        """Return the offset pairs of a topic's partitions after a write, and the changed positions
        that have an offset of `LocalRecords`.

        Args:
            ends: new positions in the source.
            firsts: batches that were written.
            offsets: result of `_written`.
        """
        pairs: list[Located] = []
        local: dict[str, int | None] = {}
        for partition, (first, last) in offsets.items():
            if first < 0:
                continue
            place, batches = (topic, partition), firsts.get(partition, [])
            whole = last - first + 1 == sum(count for _, count in batches)
            if not self._syncs.knows(place):
                pairs.append((place, Pair(self._positions[place], first)))
            if whole:
                pairs += [(place, pair) for pair in syncs.batch_pairs(batches, first)]
            pairs.append((place, Pair(ends[partition], last + 1)))
            if self._local is not None:
                free = self._local.written(place, first if whole else last + 1, last)
                if free != self._stored.get(stored_key(place)):
                    local[stored_key(place)] = free
        return pairs, local

    def _transfer_groups(self) -> None:
        try:
            self._groups.transfer()
        except PenstockError as error:
            logger.warning("mirror %s: groups: %s", self._spec.name, error)
            self._run.watch.note("groups", f"not transferred: {error}")
        else:
            self._run.watch.note("groups", None)
            self._run.watch.note("active_groups", self._groups.active or None)
