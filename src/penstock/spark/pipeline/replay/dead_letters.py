"""Replay of dead letters to their original topics, each once, with a table of replays.

`open.json` is written before a replay begins. It has the filters, fixed offsets of the dead-letter
topic, a fixed version of the table of replays, a batch number, the user and the time. Then the
records are appended to their topics in one commit with the batch number. A row per dead letter is
appended to the table of replays with the same number, and `open.json` is renamed. The next call
first finishes an interrupted replay. Later replays leave out dead letters with a row in the table.

    <state>/replaying/owner.json     the owner of the batch numbers, and the next number
    <state>/replaying/open.json      the open replay
    <state>/replaying/<id>.json      a completed or rejected replay
    <state>/replays                  a Delta table: a row for each replayed dead letter
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.base.errors import CorruptError, InvalidError
from penstock.base.files import write_durably
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.client import Client
from penstock.records.columnar.shortening import TRUNCATED, WithoutHeaders
from penstock.records.extents import READ_COMMITTED
from penstock.spark.errors import CommitRefused, InvalidRows, SinkOwnerChanged, UnknownTopics
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.pipeline.state import PipelinePaths
from penstock.spark.pipeline.writing import PREFIX as ERROR_PREFIX
from penstock.spark.schema import HEADERS, spark_schema
from penstock.spark.sink.log_sink import LogSink
from penstock.spark.tables import DeltaSink, read_table, table_version

# Dead letters as columns: origin, reason, and the record to replay.
#
# The headers of a dead letter name its origin (`pipeline/writing.py`). A replay writes the
# original record without those headers, and adds
#
#   penstock.replay.id, .from (topic-partition@offset of the dead letter), .attempt (1 for the first
#   time), .at (milliseconds), .by, .timestamp (of the original record, in milliseconds)
#
# The timestamp of the replayed record is the time of the replay, because retention could delete an
# older record at once. If the topic accepts the record only without the added headers, they are
# left out. A truncated dead letter cannot be replayed.


REPLAY_PREFIX: Final = "penstock.replay."
LETTER: Final = ("letter_topic_id", "letter_partition", "letter_offset")
"""Columns that identify a dead letter, even if its topic was deleted and created again."""
AUDITED: Final = (
    "rule", "letter_topic", *LETTER, "topic", "partition", "offset", "attempt",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Offsets of one partition of the dead-letter topic, both ends included."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Selection of dead letters to replay.

    `topic` is the original topic. `again` includes dead letters that were replayed before. `limit`
    selects the first ones by partition and offset.
    """

    rule: str | None = None
    topic: str | None = None
    since_ms: int | None = None
    offsets: tuple[OffsetRange, ...] = ()
    limit: int | None = None
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Id, user and time of a replay."""

    replay_id: str
    by: str
    at_ms: int


def dead_letters(records: DataFrame, *, pipeline: str, topic_id: str) -> DataFrame:
    """Return the dead letters of a pipeline, from the records of its dead-letter topic.

    Columns of the original record: `key`, `value`, `headers`, `topic`, `partition`, `offset`,
    `first_ms` (its timestamp), and `whole` (false if the dead letter is truncated). Columns of the
    rejection: `rule`, `reason`, `query`. Columns of the dead letter: `letter_topic`,
    `letter_topic_id`, `letter_partition`, `letter_offset`, `letter_time`, and `attempt`, the number
    of its next replay.
    """
    mine = records.where(_text("pipeline") == pipeline)
    attempt = _text("attempt", REPLAY_PREFIX).try_cast("int")
    return mine.select(
        "key",
        "value",
        _own_headers().alias(HEADERS),
        *(_text(name).alias(name) for name in ("rule", "reason", "query", "topic")),
        _text("partition").try_cast("int").alias("partition"),
        _text("offset").try_cast("bigint").alias("offset"),
        _text("timestamp").try_cast("bigint").alias("first_ms"),
        _text(TRUNCATED).isNull().alias("whole"),
        F.col("topic").alias("letter_topic"),
        F.lit(topic_id).alias("letter_topic_id"),
        F.col("partition").alias("letter_partition"),
        F.col("offset").alias("letter_offset"),
        F.col("timestamp").alias("letter_time"),
        (F.coalesce(attempt, F.lit(0)) + 1).alias("attempt"),
    )


def meant(found: DataFrame, wanted: Filters) -> DataFrame:
    """Return the dead letters that match the filters; ignore `again` and `limit`."""
    conditions: list[Column] = []
    if wanted.rule is not None:
        conditions.append(F.col("rule") == wanted.rule)
    if wanted.topic is not None:
        conditions.append(F.col("topic") == wanted.topic)
    if wanted.since_ms is not None:
        conditions.append(F.col("letter_time") >= F.timestamp_millis(F.lit(wanted.since_ms)))
    if wanted.offsets:
        conditions.append(reduce(Column.__or__, [_within(offset) for offset in wanted.offsets]))
    return reduce(DataFrame.where, conditions, found)


def marked(found: DataFrame, replays: DataFrame | None, spec: PipelineSpec) -> DataFrame:
    """Return the dead letters with the columns `replayed` (before) and `open` (can be replayed).

    A dead letter cannot be replayed if its headers lack the origin, if it is truncated, or if its
    record is a line of an outbox payload.
    """
    placed = F.col("topic").isNotNull() & F.col("partition").isNotNull() & F.col("whole")
    outboxes = [source for source in spec.sources.values() if source.outbox is not None]
    for source in outboxes:
        here = F.col("topic").isin(*source.topics)
        if source.pattern is not None:
            here = F.col("topic").rlike(f"^(?:{source.pattern})$")
        placed &= ~here
    frame = found.withColumn("open", F.coalesce(placed, F.lit(False)))
    if replays is None:
        return frame.withColumn("replayed", F.lit(False))
    before = replays.select(*LETTER).distinct().withColumn("replayed", F.lit(True))
    return frame.join(before, list(LETTER), "left").withColumn(
        "replayed", F.coalesce(F.col("replayed"), F.lit(False))
    )


def chosen(frame: DataFrame, wanted: Filters) -> DataFrame:
    """Return the dead letters of a marked frame to replay; repeated calls return the same ones."""
    going = frame.where(F.col("open"))
    if not wanted.again:
        going = going.where(~F.col("replayed"))
    if wanted.limit is not None:
        going = going.orderBy("letter_partition", "letter_offset").limit(wanted.limit)
    return going.drop("open", "replayed")


def put_back(going: DataFrame, stamp: Stamp) -> DataFrame:
    """Return dead letters as records to write, those of a key in their original order.

    A record with a key goes to the current partition of the key. A record without a key goes to its
    original partition.
    """
    place = F.concat(
        "letter_topic", F.lit("-"), F.col("letter_partition").cast("string"),
        F.lit("@"), F.col("letter_offset").cast("string"),
    )  # fmt: skip
    facts: Mapping[str, Column] = {
        "id": F.lit(stamp.replay_id),
        "from": place,
        "attempt": F.col("attempt").cast("string"),
        "at": F.lit(str(stamp.at_ms)),
        "by": F.lit(stamp.by),
        "timestamp": F.coalesce(F.col("first_ms").cast("string"), F.lit("")),
    }
    added = [
        F.struct(F.lit(REPLAY_PREFIX + name).alias("key"), F.encode(value, "UTF-8").alias("value"))
        for name, value in facts.items()
    ]
    headers = F.concat(F.col(HEADERS), F.array(*added).cast(_headers_type()))
    partition = F.when(F.col("key").isNull(), F.col("partition"))
    order = ("partition", "offset", "letter_partition", "letter_offset")
    return (
        going.repartition("topic", "key", partition)
        .sortWithinPartitions(*order)
        .select("key", "value", headers.alias(HEADERS), "topic", partition.alias("partition"))
    )


def audit_rows(going: DataFrame, stamp: Stamp, *, batch: int) -> DataFrame:
    return going.select(
        F.lit(stamp.replay_id).alias("replay_id"),
        F.lit(batch).cast("bigint").alias("batch"),
        F.timestamp_millis(F.lit(stamp.at_ms)).alias("at"),
        F.lit(stamp.by).alias("by"),
        *AUDITED,
    )


def _text(name: str, prefix: str = ERROR_PREFIX) -> Column:
    """Return the last header of this name as text; null if there is none."""
    found = F.filter(F.col(HEADERS), lambda one: one["key"] == prefix + name)
    return F.try_element_at(found, F.lit(-1))["value"].cast("string")


def _own_headers() -> Column:
    def own(one: Column) -> Column:
        prefixes: Sequence[str] = (ERROR_PREFIX, REPLAY_PREFIX)
        return ~reduce(Column.__or__, [one["key"].startswith(prefix) for prefix in prefixes])

    return F.coalesce(F.filter(F.col(HEADERS), own), F.array().cast(_headers_type()))


def _headers_type() -> str:
    return spark_schema((HEADERS,))[HEADERS].dataType.simpleString()


def _within(one: OffsetRange) -> Column:
    offset = F.col("letter_offset")
    here = F.col("letter_partition") == one.partition
    return here & (offset >= one.first) & (offset <= one.last)


class Busy(InvalidError):
    """Lock of a file that another process holds."""

    code: ClassVar[str] = "invalid_request"


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock of the file `path` while the block runs; `what` names the work in errors.

    Raises:
        Busy: another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise Busy(f"{what} is already running as process {owner}: {path} is locked") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


GROUPS_MAX: Final = 1_000
EXAMPLES: Final = 5
OPEN: Final = "open.json"
OWNER: Final = "owner.json"
Offsets = Mapping[int, int]


class NoDeadLetters(InvalidError):
    """Pipeline without a dead-letter topic."""

    code: ClassVar[str] = "invalid_config"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Replay as stored before it begins: its selection of dead letters, user and time."""

    id: str
    batch: int
    owner: str
    by: str
    at_ms: int
    topic: str
    topic_id: str
    start: Mapping[str, int]
    end: Mapping[str, int]
    audit_version: int | None
    filters: Filters

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Replay:
        given = dict(body["filters"])
        given["offsets"] = tuple(OffsetRange(**offsets) for offsets in given["offsets"])
        return cls(**{**body, "filters": Filters(**given)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Selected dead letters: counts by rule and topic, and the first ones to be replayed.

    A group has `rule`, `topic`, and numbers of dead letters: `letters` (all), `replayed` (before),
    `stuck` (cannot be replayed), and `going` (to be replayed).
    """

    groups: tuple[Mapping[str, Any], ...]
    examples: tuple[Mapping[str, Any], ...]

    @property
    def going(self) -> int:
        return sum(group["going"] for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """Completed replay; `resumed` means that an earlier call began it."""

    id: str
    records: int
    resumed: bool


class DeadLetters:
    """Dead letters of one pipeline."""

    def __init__(
        self,
        spec: PipelineSpec,
        spark: SparkSession,
        *,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        """Prepare replays for the pipeline.

        Raises:
            NoDeadLetters: the file names no dead-letter topic.
        """
        if spec.errors.dead_letters is None:
            raise NoDeadLetters(
                f"{spec.file}: errors.dead_letters is not set: no dead-letter topic to read"
            )
        self._spec = spec
        self._spark = spark
        self._clock = clock
        self._randomness = randomness
        self._topic = spec.errors.dead_letters
        self._folder = PipelinePaths(spec).replaying
        self._table = str(PipelinePaths(spec).replays)

    def look(self, wanted: Filters) -> Found:
        """Count the dead letters that `replay` would write; `limit` is for all groups together."""
        replay = self._decide(wanted, by="", batch=0, owner="")
        frame = self._marked(replay).persist()
        try:
            return Found(groups=_groups(frame, wanted), examples=_examples(frame, wanted))
        finally:
            frame.unpersist()

    def replay(self, wanted: Filters, *, by: str) -> tuple[Replayed, ...]:
        """Replay dead letters, after finishing an interrupted replay.

        Returns:
            The completed replays, in order. If no dead letter is selected, no new replay begins.

        Raises:
            InvalidRows, UnknownTopics, CommitRefused: the log rejects the records; nothing is
                written.
            SinkOwnerChanged: the log has replays that this state directory lacks.
            AdminUnavailable, CommitUnfinished: the replay is interrupted; call again to finish it.
            Busy: another process replays dead letters of this pipeline.
        """
        with locked(self._folder / "lock", f"replay of dead letters of {self._spec.name}"):
            done = [self._run(begun, resumed=True) for begun in self._open()]
            owner, batch = self._numbers()
            replay = self._decide(wanted, by=by, batch=batch, owner=owner)
            if not chosen(self._marked(replay), wanted).isEmpty():
                write_durably(self._folder / OPEN, json.dumps(asdict(replay)).encode())
                done.append(self._run(replay, resumed=False))
            return tuple(done)

    def _decide(self, wanted: Filters, *, by: str, batch: int, owner: str) -> Replay:
        with Client(self._spec.run.bootstrap, client_id="penstock-replay") as client:
            topic_id = str(client.describe_topic(self._topic).topic_id)
            start, end = (
                client.list_offsets(self._topic, at, isolation=READ_COMMITTED)
                for at in ("earliest", "latest")
            )
        return Replay(
            id=self._randomness.uuid().hex,
            batch=batch,
            owner=owner,
            by=by,
            at_ms=self._clock.now_ms(),
            topic=self._topic,
            topic_id=topic_id,
            start=_named(start),
            end=_named(end),
            audit_version=table_version(self._table),
            filters=wanted,
        )

    def _marked(self, replay: Replay) -> DataFrame:
        options = {
            "bootstrap": self._spec.run.bootstrap,
            "subscribe": replay.topic,
            "startingOffsets": json.dumps({replay.topic: replay.start}),
            "endingOffsets": json.dumps({replay.topic: replay.end}),
            "includeHeaders": "true",
            # Retention may have deleted records while a replay was interrupted.
            "failOnDataLoss": "false",
        }
        if self._spec.run.admin_url:
            options["penstock.admin.url"] = self._spec.run.admin_url
        records = self._spark.read.format("penstock").options(**options).load()
        found = dead_letters(records, pipeline=self._spec.name, topic_id=replay.topic_id)
        replays = None
        if replay.audit_version is not None:
            replays = read_table(self._spark, self._table, version=replay.audit_version)
        return marked(meant(found, replay.filters), replays, self._spec)

    def _run(self, replay: Replay, *, resumed: bool) -> Replayed:
        going = chosen(self._marked(replay), replay.filters).persist()
        application = f"{self._spec.name}.replay.{replay.topic}"
        stamp = Stamp(replay_id=replay.id, by=replay.by, at_ms=replay.at_ms)
        try:
            log = LogSink(
                application=application,
                bootstrap=self._spec.run.bootstrap,
                admin_url=self._spec.run.admin_url,
                shorten=WithoutHeaders(prefix=REPLAY_PREFIX),
            )
            with self._put_aside_when_refused(replay):
                log.write(put_back(going, stamp), replay.batch, owner=replay.owner)
            audit = DeltaSink(self._table, application=application)
            audit.write(audit_rows(going, stamp, batch=replay.batch), replay.batch)
            records = going.count()
        finally:
            going.unpersist()
        self._finish(replay, records=records)
        return Replayed(id=replay.id, records=records, resumed=resumed)

    @contextmanager
    def _put_aside_when_refused(self, replay: Replay) -> Iterator[None]:
        """Close a replay as rejected if the log rejects it, so that later replays can begin."""
        try:
            yield
        except (InvalidRows, UnknownTopics, CommitRefused, SinkOwnerChanged) as error:
            self._finish(replay, records=0, refused=str(error))
            raise

    def _finish(self, replay: Replay, *, records: int, refused: str | None = None) -> None:
        self._write_numbers(replay.owner, replay.batch + 1)
        body = {**asdict(replay), "records": records, "refused": refused}
        write_durably(self._folder / f"{replay.id}.json", json.dumps(body).encode())
        (self._folder / OPEN).unlink()

    def _open(self) -> list[Replay]:
        body = _read(self._folder / OPEN)
        return [] if body is None else [Replay.from_json(body)]

    def _numbers(self) -> tuple[str, int]:
        body = _read(self._folder / OWNER)
        if body is None:
            body = {"owner": self._randomness.uuid().hex, "next_batch": 0}
            self._write_numbers(body["owner"], body["next_batch"])
        return body["owner"], body["next_batch"]

    def _write_numbers(self, owner: str, batch: int) -> None:
        body = json.dumps({"owner": owner, "next_batch": batch})
        write_durably(self._folder / OWNER, body.encode())


def _groups(frame: DataFrame, wanted: Filters) -> tuple[Mapping[str, Any], ...]:
    counts = frame.groupBy("rule", "topic").agg(
        F.count("*").alias("letters"),
        F.count_if("replayed").alias("replayed"),
        F.count_if(~F.col("open")).alias("stuck"),
    )
    going = chosen(frame, wanted).groupBy("rule", "topic").agg(F.count("*").alias("going"))
    same = F.col("l.rule").eqNullSafe(F.col("r.rule")) & F.col("l.topic").eqNullSafe(
        F.col("r.topic")
    )
    joined = counts.alias("l").join(going.alias("r"), same, "left")
    rows = joined.select("l.*", F.coalesce("r.going", F.lit(0)).alias("going"))
    return tuple(row.asDict() for row in rows.orderBy("rule", "topic").limit(GROUPS_MAX).collect())


def _examples(frame: DataFrame, wanted: Filters) -> tuple[Mapping[str, Any], ...]:
    first = chosen(frame, wanted).orderBy("letter_partition", "letter_offset")
    shown = first.limit(EXAMPLES).select(
        "letter_partition", "letter_offset", "letter_time", "topic", "partition", "offset", "rule",
        "reason", F.col("key").cast("string"), F.col("value").cast("string"), "attempt",
    )  # fmt: skip
    return tuple(row.asDict() for row in shown.collect())


def _named(offsets: Offsets) -> dict[str, int]:
    return {str(partition): offset for partition, offset in sorted(offsets.items())}


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CorruptError(f"{path} cannot be read: {error}") from error
    return body
