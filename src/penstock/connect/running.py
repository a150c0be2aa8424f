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
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from penstock.base.errors import FencedError, InvalidError, RetriableError, UnavailableError
from penstock.base.retry import Backoff
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, keep_memory
from penstock.client import Client, TransactionalProducer
from penstock.client.errors import InvalidArgument
from penstock.connect import positions as stored
from penstock.connect.connector_file import ConnectorSpec
from penstock.connect.converting import encoded, joined
from penstock.connect.errors import ConnectorFailed, RowsRejected, Stage
from penstock.connect.failures import dead_letters
from penstock.connect.plugins import (
    OFFSET,
    PARTITION,
    Records,
    Sink,
    SinkBatch,
    Source,
    SourceBatch,
    SourceContext,
)
from penstock.connect.registering import converters
from penstock.connect.status import StatusFile
from penstock.connect.steps import applied
from penstock.records.extents import READ_COMMITTED

if TYPE_CHECKING:
    from penstock.connect.decoding import Decoder

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
    dead: set[tuple[str, int, int]] = field(default_factory=set)
    """Topics, partitions and offsets of dead letters whose offsets are not committed yet."""


def run(run: Run) -> None:
    """Run a connector until it is stopped, or with `once` until it has caught up.

    Raises:
        PenstockError: the connector has failed; the status has the cause.
    """
    keep_memory()
    if run.spec.direction == "source":
        _attempts(run, partial(_source_attempt, run))
    else:
        with closing(_SinkAttempts(run)) as attempt:
            _attempts(run, attempt)
    run.status.enter("STOPPED")


def _attempts(run: Run, attempt: Callable[[], None]) -> None:
    """Call `attempt` again after errors that a retry can solve, until it returns."""
    errors = run.spec.errors
    backoff = Backoff(
        first_ms=FIRST_PAUSE_MS, ceiling_ms=errors.retry_delay_max_seconds * 1000, steady=0.5
    )
    failures, since = 0, 0.0
    while not run.stop.requested:
        began = run.clock.monotonic()
        try:
            attempt()
            break
        except (RetriableError, UnavailableError) as error:
            now = run.clock.monotonic()
            steady = run.status.status.state == "RUNNING" and now - began > STEADY_SECONDS
            if not failures or steady:
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
        """Dead letters that are not written yet."""
        self.places: set[tuple[str, int, int]] = set()
        """Topics, partitions and offsets of the rows of a sink."""
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
        if not self._topic:
            return
        records = raw()
        fresh = self._fresh(records, rejected)
        if fresh.rows:
            name, now_ms = self._run.spec.name, self._run.clock.now_ms()
            self.tables.append(dead_letters(name, records, fresh, stage, now_ms))

    def decoded(self, decoder: Decoder | None, raw: Records) -> tuple[Records, Records]:
        """Return rows with decoded keys and values, and the same rows with bytes.

        The rows that are left may get other types, for which more of them are rejected.
        """
        while decoder is not None and raw.count:
            try:
                return decoder.decode(raw), raw
            except RowsRejected as rejected:
                before = raw
                self.add(lambda: before, rejected, "convert", raw.topic)  # noqa: B023
                raw = raw.without(rejected)
        return raw, raw

    def _fresh(self, raw: Records, rejected: RowsRejected) -> RowsRejected:
        """Return the rows of which an earlier attempt has not written a dead letter."""
        if OFFSET not in raw.rows.column_names:
            return rejected
        rows = raw.rows.take(pa.array(rejected.rows, pa.int64()))
        given = zip(rows[PARTITION].to_pylist(), rows[OFFSET].to_pylist(), strict=True)
        places = [(raw.topic, partition, offset) for partition, offset in given]
        fresh = [index for index, place in enumerate(places) if place not in self._run.dead]
        self.places.update(places)
        reasons = [rejected.reasons[index] for index in fresh]
        return RowsRejected([rejected.rows[index] for index in fresh], reasons)

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
        return applied(run.spec.transforms, records.without(rejected))


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
        for batch in self._source.read(dict(self._positions)):
            if batch.records or batch.positions:
                self._commit(batch)
            run.status.enter("RUNNING")  # not before: the source may still be unavailable
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


class _SinkAttempts:
    """Attempts to deliver topics to a sink."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._kept: Sink[Any] | None = None
        """Sink of the attempt before, if it resumes."""

    def __call__(self) -> None:
        run, sink, self._kept = self._run, self._kept, None
        if sink is None:
            sink = run.spec.sink_plugin()(run.spec.settings, run.spec.name)
        delivery = Delivery(run, sink)
        try:
            delivery.run()
        except (RetriableError, UnavailableError):
            if sink.resumes:
                self._kept = sink
            raise
        finally:
            if self._kept is None:
                sink.close()
        delivery.commit()

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()


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
        self._written: list[tuple[str, Mapping[int, int], int]] = []
        """Topic, next offsets and rows of each batch that is not committed."""

    def run(self) -> None:
        run = self._run
        self._load()
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
                run.status.enter("RUNNING")  # not before: the target may still be unavailable
            run.status.refresh(self._sink.facts())
            if done:
                break
            if not moved:
                run.stop.pause(IDLE_SECONDS)
        self._sink.flush()

    def _load(self) -> None:
        """Set the next offset of each partition: the target's, else the group's, else the first."""
        client = self._run.client
        committed = {at: found.offset for at, found in client.committed(self._group).items()}
        stored = self._sink.offsets()
        for topic in self._run.spec.options.topics:
            for partition, first in client.list_offsets(topic, "earliest").items():
                place = (topic, partition)
                begin = (committed if stored is None else stored).get(place, first)
                self._next[place] = max(begin, first)
                self._committed[place] = committed.get(place, first)

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
        records, kept = rejections.decoded(self._decoder, raw)
        parts = transformed(self._run, records, rejections, lambda: kept) if kept.count else ()
        batch = SinkBatch(topic=raw.topic, parts=parts, next_offsets=following)
        while True:
            self._write_dead_letters(rejections)
            try:
                self._sink.write(batch)  # also without rows: a sink may store the offsets
                break
            except RowsRejected as rejected:
                if not rejected.rows:
                    raise
                bad = list(rejected.rows)
                rows = _indexes(kept.rows, batch.partitions[bad], batch.offsets[bad])
                originals = RowsRejected(rows, rejected.reasons)
                rejections.add(lambda: kept, originals, "write", raw.topic)
                batch = batch.without(rejected)
        rejections.counted()
        self._written.append((raw.topic, following, raw.count - rejections.count))

    def _write_dead_letters(self, rejections: Rejections) -> None:
        """Write dead letters before the sink can store the offsets behind their rows."""
        topic = self._run.spec.errors.dead_letters
        for table in rejections.tables:
            self._topics.ensure(topic)
            self._run.client.write_arrow(topic, table)
        rejections.tables.clear()
        self._run.dead.update(rejections.places)

    def _flush(self) -> None:
        """Store the rows of the sink, also without new ones: a file may be due by time."""
        self._flush_at = self._run.clock.monotonic() + self._run.spec.options.flush_interval_seconds
        self._sink.flush()
        self.commit()

    def commit(self) -> None:
        """Commit the offsets behind the rows that the sink has stored."""
        stored = self._next | dict(self._sink.unstored())
        changed = {
            place: offset for place, offset in stored.items()
            if self._committed.get(place) != offset
        }  # fmt: skip
        if changed:
            self._run.client.commit_offsets(self._group, changed)
            self._committed |= changed
            left = [
                (topic, following, count) for topic, following, count in self._written
                if any(stored[topic, partition] < at for partition, at in following.items())
            ]  # fmt: skip
            rows = sum(count for *_, count in self._written) - sum(count for *_, count in left)
            self._written = left
            self._run.dead.difference_update(
                [place for place in self._run.dead if place[2] < stored[place[:2]]]
            )
            shown = {f"{topic}-{partition}": at for (topic, partition), at in stored.items()}
            self._run.status.committed(rows, shown, {topic for topic, _ in changed})
        self._run.status.refresh(self._sink.facts())


def _following(rows: Any, otherwise: Mapping[int, int]) -> dict[int, int]:
    """Return the next offset of each partition: behind its last row, at least `otherwise`."""
    found = dict(otherwise)
    if rows.num_rows:
        partitions, offsets = rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy()
        ends = np.append(np.flatnonzero(np.diff(partitions)), len(partitions) - 1)  # of runs
        for partition, last in zip(partitions[ends].tolist(), offsets[ends].tolist(), strict=True):
            found[partition] = max(found[partition], last + 1)
    return found


def _indexes(rows: Any, partitions: Any, offsets: Any) -> list[int]:
    """Return the indexes of the rows with these partitions and offsets."""
    given = rows[PARTITION].to_pylist(), rows[OFFSET].to_pylist()
    by_place = {place: index for index, place in enumerate(zip(*given, strict=True))}
    try:
        wanted = zip(partitions.tolist(), offsets.tolist(), strict=True)
        return [by_place[place] for place in wanted]
    except KeyError as error:
        raise InvalidArgument(f"no row has the partition and offset {error}") from error
