"""Runner of a connector: transfers batches, commits positions, retries, and keeps the status.

A source's batch is one transaction of the log. It has the rows, the dead letters and the positions.
After a failure the source starts again from the committed positions, so each row is written once.

A sink reads the topics up to their last stable offsets. It stores offsets itself, together with its
rows, or the runner commits them for the group `connect-<name>` after `flush`.

| error                                | the runner                                           |
|--------------------------------------|------------------------------------------------------|
| `RowsRejected`                       | writes dead letters, skips, or fails, by `[errors]`  |
| `RetriableError`, `UnavailableError` | starts the source or sink again after a pause        |
| any other                            | fails                                                |
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow.compute as pc

from penstock.base.errors import FencedError, InvalidError, RetriableError, UnavailableError
from penstock.base.retry import Backoff
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock
from penstock.client import Client, TransactionalProducer
from penstock.client.errors import InvalidArgument
from penstock.connect import positions as stored
from penstock.connect.connector_file import ConnectorSpec
from penstock.connect.converting import encoded, joined
from penstock.connect.errors import ConnectorFailed, RowsRejected, Stage
from penstock.connect.failures import dead_letters, without
from penstock.connect.plugins import Records, Sink, SinkBatch, Source, SourceBatch, SourceContext
from penstock.connect.registering import converters
from penstock.connect.status import StatusFile
from penstock.connect.steps import applied
from penstock.records.extents import READ_COMMITTED

FIRST_PAUSE_MS: Final = 250.0
IDLE_SECONDS: Final = 0.05
"""Pause of a sink that has read everything."""
STEADY_SECONDS: Final = 30.0
"""Time without a failure after which the pauses between attempts start from the beginning."""
TRANSACTION_TIMEOUT_MS: Final = 60_000

logger = logging.getLogger(__name__)


class Stop:
    """Request to end a run, which signals and other threads may set."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    @property
    def requested(self) -> bool:
        return self._event.is_set()

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until the end is requested."""
        self._event.wait(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run of a connector, and the parts that all of its attempts share.

    Attributes:
        once: whether the run ends when all data that was there at its start has been transferred.
        report: receives lines about long steps, created topics and changes of other systems.
    """

    spec: ConnectorSpec
    client: Client
    status: StatusFile
    stop: Stop
    once: bool = False
    report: Callable[[str], None] = logger.info
    clock: Clock = SYSTEM_CLOCK


def run(run: Run) -> None:
    """Run a connector until it is stopped, or with `once` until it has caught up.

    Raises:
        PenstockError: the connector has failed; the status has the cause.
    """
    errors = run.spec.errors
    backoff = Backoff(
        first_ms=FIRST_PAUSE_MS, ceiling_ms=errors.retry_delay_max_seconds * 1000, steady=0.5
    )
    attempt = _source_attempt if run.spec.direction == "source" else _sink_attempt
    failures, since = 0, 0.0
    while not run.stop.requested:
        began = run.clock.monotonic()
        try:
            attempt(run)
            break
        except (RetriableError, UnavailableError) as error:
            now = run.clock.monotonic()
            if not failures or now - began > STEADY_SECONDS:
                failures, since = 0, now
            failures += 1
            if 0 <= errors.retry_timeout_seconds <= now - since:
                run.status.enter("FAILED", str(error))
                raise
            run.status.status.retries += 1
            run.status.enter("RETRYING", str(error))
            logger.warning("connector %s: %s", run.spec.name, error)
            pause = backoff.pause_seconds(failures, chance=SYSTEM_RANDOMNESS.uniform())
            run.stop.pause(max(pause, getattr(error, "pause_seconds", 0.0)))
        except Exception as error:
            run.status.enter("FAILED", _cause(run.spec, error))
            raise
    run.status.enter("STOPPED")


def _cause(spec: ConnectorSpec, error: Exception) -> str:
    if isinstance(error, FencedError) or getattr(error, "code", "") == "producer_fenced":
        return f"another run of connector {spec.name} has replaced this one"
    return str(error) if isinstance(error, InvalidError) else f"{type(error).__name__}: {error}"


class Rejections:
    """Rows of the present batch that were rejected, and the topic that they are written to."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._topic = run.spec.errors.dead_letters
        self._goes_on = run.spec.errors.tolerance == "all" or bool(self._topic)
        self.tables: list[Any] = []
        self.count = 0

    def add(
        self, raw: Callable[[], Records], rejected: RowsRejected, stage: Stage, topic: str
    ) -> None:
        """Keep rejected rows as dead letters, or skip them.

        Args:
            raw: returns the rows with keys and values as bytes.

        Raises:
            ConnectorFailed: `[errors]` does not allow rejected rows.
        """
        if not self._goes_on:
            raise ConnectorFailed(
                f"topic {topic}: {len(rejected.rows)} rows cannot be processed: {rejected}. Set"
                ' errors.dead_letters to keep such rows in a topic, or errors.tolerance = "all"'
                " to skip them"
            ) from rejected
        self.count += len(rejected.rows)
        if self._topic:
            name = self._run.spec.name
            now_ms = self._run.clock.now_ms()
            self.tables.append(dead_letters(name, raw(), rejected, stage, now_ms))

    def counted(self) -> None:
        status = self._run.status.status
        if self._topic:
            status.dead_letters += self.count
        else:
            status.skipped += self.count


def transformed(
    run: Run, records: Records, rejections: Rejections, raw: Callable[[], Records]
) -> list[Records]:
    """Return rows after the connector's transforms, without those that were rejected."""
    try:
        return applied(run.spec.transforms, records) if run.spec.transforms else [records]
    except RowsRejected as rejected:
        rejections.add(raw, rejected, "transform", records.topic)
        return applied(run.spec.transforms, without(records, rejected))


class Topics:
    """Topics that a run writes to; those that do not exist are created."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._known: set[str] = set()

    def ensure(self, topic: str) -> None:
        if topic in self._known:
            return
        options = self._run.spec.options
        partitions = getattr(options, "partitions", 1)
        factor = getattr(options, "replication_factor", -1)
        client = self._run.client
        if topic not in {found.name for found in client.list_topics()}:
            client.create_topic(topic, partitions, replication_factor=factor, exist_ok=True)
            self._run.report(f"created topic {topic} with {partitions} partitions")
        self._known.add(topic)


# Sources


def _source_attempt(run: Run) -> None:
    spec = run.spec
    producer = run.client.transactional(f"connect-{spec.name}", timeout_ms=TRANSACTION_TIMEOUT_MS)
    producer.begin()  # fences earlier runs and ends their transaction, before positions are read
    producer.abort()
    positions = stored.load(run.client, spec.name, spec.options.replication_factor)
    context = SourceContext(connector=spec.name, once=run.once, report=run.report)
    source = spec.source_plugin()(spec.settings, context)
    try:
        _Transfer(run, source, producer, positions).run()
    finally:
        source.close()


class _Transfer:
    """Transfer of a source's batches into the log."""

    def __init__(
        self, run: Run, source: Source[Any], producer: TransactionalProducer, positions: Any
    ) -> None:
        self._run = run
        self._source = source
        self._producer = producer
        self._positions: dict[str, Any] = positions
        self._topics = Topics(run)
        self._key, self._value = converters(run.spec.options)

    def run(self) -> None:
        run = self._run
        for topic in self._source.topics():
            self._topics.ensure(topic)
        run.status.enter("RUNNING")
        for batch in self._source.read(dict(self._positions)):
            if batch.records or batch.positions:
                self._commit(batch)
            run.status.refresh(self._source.facts())
            if run.stop.requested or (run.once and batch.caught_up):
                break
        run.status.refresh(self._source.facts())

    def _commit(self, batch: SourceBatch) -> None:
        rejections = Rejections(self._run)
        rows: list[tuple[str, Any]] = []
        for records in batch.records:
            rows += self._encoded(records, rejections)
        written = 0
        codec = self._run.spec.options.compression
        for topic in {topic for topic, _ in rows}:
            self._topics.ensure(topic)
        with self._producer.transaction() as transaction:
            for topic, entries in _by_topic(rows):
                table = joined(entries)
                written += table.num_rows
                partition = "partition" if "partition" in table.column_names else None
                transaction.write_arrow(topic, table, codec=codec, partition=partition)
            if rejections.tables:
                self._topics.ensure(self._run.spec.errors.dead_letters)
                for table in rejections.tables:
                    transaction.write_arrow(self._run.spec.errors.dead_letters, table)
            if batch.positions:
                topic = stored.positions_topic(self._run.spec.name)
                transaction.write_arrow(topic, stored.rows_of(batch.positions))
        for name, position in batch.positions.items():
            if position is None:
                self._positions.pop(name, None)
            else:
                self._positions[name] = position
        self._source.committed(batch.positions)
        rejections.counted()
        self._run.status.committed(written, self._positions, {topic for topic, _ in rows})

    def _encoded(self, records: Records, rejections: Rejections) -> list[tuple[str, Any]]:
        def raw() -> Records:
            return records.with_rows(encoded(records, self._key, self._value))

        return [
            (after.topic, encoded(after, self._key, self._value))
            for after in transformed(self._run, records, rejections, raw)
            if after.count
        ]


def _by_topic(rows: list[tuple[str, Any]]) -> list[tuple[str, list[Any]]]:
    """Return the tables of each topic, topics sorted by name, tables in their order."""
    grouped = groupby(sorted(rows, key=lambda entry: entry[0]), key=lambda entry: entry[0])
    return [(topic, [table for _, table in entries]) for topic, entries in grouped]


# Sinks


def group_of(connector: str) -> str:
    """Return the consumer group whose offsets are those of a sink."""
    return f"connect-{connector}"


def _sink_attempt(run: Run) -> None:
    sink = run.spec.sink_plugin()(run.spec.settings, run.spec.name)
    try:
        Delivery(run, sink).run()
    finally:
        sink.close()


class Delivery:
    """Delivery of topics to a sink."""

    def __init__(self, run: Run, sink: Sink[Any]) -> None:
        from penstock.connect.decoding import Decoder

        self._run = run
        self._sink = sink
        self._group = group_of(run.spec.name)
        self._decoder = None if sink.raw else Decoder(run.spec.options)
        self._next: dict[tuple[str, int], int] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._flush_at = 0.0
        self._topics = Topics(run)
        self._unflushed = 0
        self._stored: Mapping[tuple[str, int], int] | None = None
        """Offsets that the sink stored before this run, by the name after the transforms."""
        self._read_as: dict[str, str] = {}
        """Topic that was read, for each topic name after the transforms."""

    def run(self) -> None:
        run = self._run
        self._load()
        run.status.enter("RUNNING")
        target = self._ends() if run.once else None
        while not run.stop.requested:
            moved = False
            for topic in run.spec.options.topics:
                moved |= self._round(topic)
            done = target is not None and all(
                self._next[place] >= end for place, end in target.items()
            )
            if done or run.clock.monotonic() >= self._flush_at:
                self._flush()
            run.status.refresh(self._facts())
            if done:
                break
            if not moved:
                run.stop.pause(IDLE_SECONDS)
        self._flush()
        run.status.refresh(self._facts())

    def _load(self) -> None:
        """Set the next offset of each partition: the target's, else the group's, else the first."""
        client, stored_offsets = self._run.client, self._sink.offsets()
        self._stored = stored_offsets
        if stored_offsets is None:
            committed = client.committed(self._group)
            stored_offsets = {place: found.offset for place, found in committed.items()}
        for topic in self._run.spec.options.topics:
            for partition, first in client.list_offsets(topic, "earliest").items():
                place = (topic, partition)
                self._next[place] = max(stored_offsets.get(place, first), first)
        self._committed = dict(self._next)

    def _ends(self) -> dict[tuple[str, int], int]:
        found: dict[tuple[str, int], int] = {}
        for topic in self._run.spec.options.topics:
            ends = self._run.client.list_offsets(topic, "latest", isolation=READ_COMMITTED)
            found |= {(topic, partition): end for partition, end in ends.items()}
        return found

    def _round(self, topic: str) -> bool:
        """Read and write the next rows of a topic; return whether there were any."""
        run, limit = self._run, self._run.spec.options.batch_rows
        ends = run.client.list_offsets(topic, "latest", isolation=READ_COMMITTED)
        start = {p: self._next.setdefault((topic, p), 0) for p in ends}
        if all(start[p] >= end for p, end in ends.items()):
            return False
        bounds = {p: max(end, start[p]) for p, end in ends.items()}
        rows = run.client.read_arrow(
            topic,
            start=start,
            end=bounds,
            columns=("key", "value", "headers", "timestamp", "partition", "offset"),
            isolation="read_committed",
            max_records=limit,
        )
        following = _following(rows, bounds if rows.num_rows < limit else start)
        if rows.num_rows:
            self.write(Records(topic, rows), following)
        for partition, offset in following.items():
            self._next[topic, partition] = offset
        return True

    def write(self, raw: Records, following: Mapping[int, int]) -> None:
        """Decode, transform and write rows; `following` are the next offsets of partitions."""
        rejections = Rejections(self._run)
        for records, before in self._decoded(raw, rejections):
            original = records
            entries = transformed(self._run, records, rejections, lambda: before)  # noqa: B023
            self._check_names(raw.topic, [entry.topic for entry in entries])
            for after in entries:
                self._deliver(after, original, before, following, rejections)
        if rejections.tables:
            topic = self._run.spec.errors.dead_letters
            self._topics.ensure(topic)
            for table in rejections.tables:
                self._run.client.write_arrow(topic, table)
        rejections.counted()
        self._unflushed += raw.count - rejections.count

    def _check_names(self, read: str, names: Sequence[str]) -> None:
        """Check that rows of one topic name have one sequence of offsets.

        A sink that stores offsets by the topic's name would skip the rows of a second sequence.

        Raises:
            ConnectorFailed: transforms gave several topics, or parts of a batch, the same name.
        """
        if self._stored is None:
            return
        for name in names:
            owner = self._read_as.setdefault(name, read)
            if owner != read or names.count(name) > 1:
                what = f"topics {owner} and {read}" if owner != read else f"parts of topic {read}"
                raise ConnectorFailed(
                    f"transforms give {what} the name {name!r}, but the sink stores offsets by this"
                    " name. Use one connector a topic, or transforms that treat all rows alike"
                )

    def _decoded(self, raw: Records, rejections: Rejections) -> Sequence[tuple[Records, Records]]:
        """Return rows with decoded keys and values, beside the same rows with bytes."""
        if self._decoder is None:
            return [(raw, raw)]
        try:
            return [(self._decoder.decode(raw), raw)]
        except RowsRejected as rejected:
            rejections.add(lambda: raw, rejected, "convert", raw.topic)
            kept = without(raw, rejected)
            return [(self._decoder.decode(kept), kept)] if kept.count else []

    def _deliver(
        self,
        records: Records,
        original: Records,
        raw: Records,
        following: Mapping[int, int],
        rejections: Rejections,
    ) -> None:
        records = self._unstored(records, raw.topic)
        try:
            self._sink.write(SinkBatch(records=records, next_offsets=following))
            return
        except RowsRejected as rejected:
            same = records.rows.select(("partition", "offset"))
            places = _indexes(original.rows, same.take(list(rejected.rows)))
            originals = RowsRejected(places, rejected.reasons)
            rejections.add(lambda: raw, originals, "write", records.topic)
            left = without(records, rejected)
        # An empty batch still stores the offsets behind the rejected rows.
        self._sink.write(SinkBatch(records=left, next_offsets=following))

    def _unstored(self, records: Records, read: str) -> Records:
        """Return the rows that the sink has not stored under a name that transforms gave them.

        A topic that keeps its name is read from the stored offsets on; others are read again.
        """
        if self._stored is None or records.topic == read:
            return records
        rows = records.rows
        for (topic, partition), offset in self._stored.items():
            if topic == records.topic:
                stored = pc.and_(
                    pc.equal(rows["partition"], partition), pc.less(rows["offset"], offset)
                )
                rows = rows.filter(pc.invert(stored))
        return records.with_rows(rows)

    def _flush(self) -> None:
        self._flush_at = self._run.clock.monotonic() + self._run.spec.options.flush_interval_seconds
        changed = {
            place: offset
            for place, offset in self._next.items()
            if self._committed.get(place) != offset
        }
        self._sink.flush()  # also without changes: a sink may complete what is due by time
        if not changed:
            return
        self._run.client.commit_offsets(self._group, changed)
        self._committed |= changed
        shown = {f"{topic}-{partition}": at for (topic, partition), at in self._next.items()}
        self._run.status.committed(self._unflushed, shown, {topic for topic, _ in changed})
        self._unflushed = 0

    def _facts(self) -> Mapping[str, Any]:
        return self._sink.facts()


def _following(rows: Any, otherwise: Mapping[int, int]) -> dict[int, int]:
    """Return the next offset of each partition: behind its last row, at least `otherwise`."""
    found = dict(otherwise)
    if rows.num_rows:
        last = rows.group_by("partition").aggregate([("offset", "max")])
        pairs = zip(last["partition"].to_pylist(), last["offset_max"].to_pylist(), strict=True)
        for partition, offset in pairs:
            found[partition] = max(found[partition], offset + 1)
    return found


def _indexes(rows: Any, places: Any) -> list[int]:
    """Return the indexes of the rows with these partitions and offsets."""
    wanted = zip(places["partition"].to_pylist(), places["offset"].to_pylist(), strict=True)
    partitions, offsets = rows["partition"].to_pylist(), rows["offset"].to_pylist()
    by_place = {place: index for index, place in enumerate(zip(partitions, offsets, strict=True))}
    try:
        return [by_place[place] for place in wanted]
    except KeyError as error:
        raise InvalidArgument(f"no row has the partition and offset {error}") from error
