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

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.base.errors import CorruptError, InvalidError
from penstock.base.files import write_durably
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.client import Client
from penstock.records.columnar.fitting import WithoutHeaders
from penstock.records.positions import READ_COMMITTED
from penstock.spark.errors import CommitRefused, InvalidRows, SinkOwnerChanged, UnknownTopics
from penstock.spark.pipeline.paths import PipelinePaths
from penstock.spark.pipeline.replay import dead_letter_rows
from penstock.spark.pipeline.replay.dead_letter_rows import Filters, OffsetRange, Stamp
from penstock.spark.pipeline.replay.locking import locked
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.sink.log_sink import LogSink
from penstock.spark.tables import DeltaSink, read_table, table_version

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
        """Return the dead letters that `replay` would write; `limit` applies to all groups."""
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
            if not dead_letter_rows.chosen(self._marked(replay), wanted).isEmpty():
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
        found = dead_letter_rows.dead_letters(
            records, pipeline=self._spec.name, topic_id=replay.topic_id
        )
        replays = None
        if replay.audit_version is not None:
            replays = read_table(self._spark, self._table, version=replay.audit_version)
        return dead_letter_rows.marked(
            dead_letter_rows.meant(found, replay.filters), replays, self._spec
        )

    def _run(self, replay: Replay, *, resumed: bool) -> Replayed:
        going = dead_letter_rows.chosen(self._marked(replay), replay.filters).persist()
        application = f"{self._spec.name}.replay.{replay.topic}"
        stamp = Stamp(replay_id=replay.id, by=replay.by, at_ms=replay.at_ms)
        try:
            log = LogSink(
                application=application,
                bootstrap=self._spec.run.bootstrap,
                admin_url=self._spec.run.admin_url,
                shorten=WithoutHeaders(prefix=dead_letter_rows.REPLAY_PREFIX),
            )
            with self._put_aside_when_refused(replay):
                log.write(dead_letter_rows.put_back(going, stamp), replay.batch, owner=replay.owner)
            audit = DeltaSink(self._table, application=application)
            audit.write(dead_letter_rows.audit_rows(going, stamp, batch=replay.batch), replay.batch)
            records = going.count()
        finally:
            going.unpersist()
        self._finish(replay, records=records)
        return Replayed(id=replay.id, records=records, resumed=resumed)

    @contextmanager
    def _put_aside_when_refused(self, replay: Replay) -> Iterator[None]:
        """Complete a replay that the log rejects, so that it does not block later replays."""
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
    going = (
        dead_letter_rows.chosen(frame, wanted)
        .groupBy("rule", "topic")
        .agg(F.count("*").alias("going"))
    )
    same = F.col("l.rule").eqNullSafe(F.col("r.rule")) & F.col("l.topic").eqNullSafe(
        F.col("r.topic")
    )
    joined = counts.alias("l").join(going.alias("r"), same, "left")
    rows = joined.select("l.*", F.coalesce("r.going", F.lit(0)).alias("going"))
    return tuple(row.asDict() for row in rows.orderBy("rule", "topic").limit(GROUPS_MAX).collect())


def _examples(frame: DataFrame, wanted: Filters) -> tuple[Mapping[str, Any], ...]:
    first = dead_letter_rows.chosen(frame, wanted).orderBy("letter_partition", "letter_offset")
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
