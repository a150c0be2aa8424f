"""Exactly-once appends to the log from `foreachBatch`.

    sink = LogSink(application="clean-orders", topic="orders-clean")
    stream.writeStream.foreachBatch(sink).option("checkpointLocation", …).start()

Tasks stage the rows of a batch as blobs, which consumers cannot see (`staging.py`). The driver then
makes one commit that names the blobs (`commits.py`) under application and batch number. If Spark
repeats the batch, it has the same number, and the broker appends nothing. Batch numbers count
within one checkpoint, so the commit also carries the query's id. If an application's earlier
batches came from another query, the broker rejects the commit.

Source: the transaction identifiers of Delta; Kafka's idempotent producer (KIP-98).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from penstock.client.errors import BATCH_BYTES
from penstock.client.security import admin_security
from penstock.records.columnar.shortening import Shorten
from penstock.spark.admin_http import BrokerAdmins
from penstock.spark.errors import InvalidOption, InvalidRows
from penstock.spark.sink.blobs import (
    Blob,
    StagingLocation,
    Target,
    blob_from_json,
    staging_locations,
)
from penstock.spark.sink.commits import Appended, Commits
from penstock.spark.sink.options import (
    COMMIT_TIMEOUT_SECONDS,
    KEY,
    PARTITION,
    TOPIC,
    SinkOptions,
    check,
    written_columns,
)
from penstock.spark.sink.staging import Attempt, find_topic, stage
from penstock.spark.staged import Staged, query_of

_STAGED: Final = "task int, number int, blob string, problem string"
_STAGED_ARROW: Final = pa.schema(
    [
        pa.field("task", pa.int32()),
        pa.field("number", pa.int32()),
        pa.field("blob", pa.string()),
        pa.field("problem", pa.string()),
    ]
)


class LogSink:
    """Sink that appends each batch of one query to the log exactly once.

    Pass the sink to `foreachBatch`, or call `write` yourself. Batches have the columns of Spark's
    Kafka sink (`value`, and optionally `key`, `topic`, `partition` and `headers`), and optionally
    `timestamp`. Other columns are not written. A struct `value` is written as JSON, as by
    `to_json`.
    """

    def __init__(
        self,
        *,
        application: str,
        bootstrap: str | None = None,
        admin_url: str | None = None,
        topic: str | None = None,
        codec: str = "none",
        ordered_by: Sequence[str] = (),
        batch_bytes: int = BATCH_BYTES,
        commit_timeout_seconds: float = COMMIT_TIMEOUT_SECONDS,
        transactional: bool = False,
        shorten: Shorten | None = None,
    ) -> None:
        """Args:
            application: permanent name of the query. Batch numbers are compared within one
                application, so a query that starts with a new checkpoint needs a new name.
            bootstrap, admin_url: addresses of the brokers, separated by commas; defaults are
                PENSTOCK_BOOTSTRAP and PENSTOCK_ADMIN_URL. With several admin addresses, any one
                broker may fail at any time.
            topic: topic of all rows; None uses the column `topic`.
            codec: none, gzip, snappy, lz4 or zstd.
            ordered_by: columns that define the order of a batch's records with the same key (or,
                with a column `partition`, of the same partition). Without it, only the order within
                each Spark partition is kept.
            batch_bytes: size at which a record batch is closed. A larger record gets its own batch,
                up to the topic's `max.message.bytes`. If it exceeds that, it is compressed.
            commit_timeout_seconds: longest time for a commit, including retries.
            transactional: whether each batch is one Kafka transaction, so that read_committed
                consumers see all of its records at once.
            shorten: function that shortens records that exceed their topic's limit; without it they
                are rejected.

        Raises:
            InvalidOption: an option is missing or invalid; the error names it.
        """
        self._options = check(
            application=application,
            bootstrap=bootstrap,
            admin_url=admin_url,
            topic=topic,
            codec=codec,
            batch_bytes=batch_bytes,
            commit_timeout_seconds=commit_timeout_seconds,
            transactional=transactional,
        )
        self.application = application
        self._shorten = shorten
        self._ordered_by = (ordered_by,) if isinstance(ordered_by, str) else tuple(ordered_by)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        self.write(batch, batch_id)

    def write(self, batch: DataFrame, batch_id: int, *, owner: str | None = None) -> Appended:
        """Append a batch unless the log already has it; the arguments are those of `stage`.

        Raises:
            CommitUnfinished, CommitRefused, SinkOwnerChanged: the commit failed.
            InvalidRows, UnknownTopics, NotPenstock, AdminUnavailable: as in `stage`.
        """
        return self.stage(batch, batch_id, owner=owner).commit()

    def stage(
        self, batch: DataFrame, batch_id: int, *, owner: str | None = None
    ) -> Staged[Appended]:
        """Stage a batch's blobs; consumers do not see them until the result is committed.

        Args:
            batch: rows to write.
            batch_id: Spark's number of the batch.
            owner: identity of the checkpoint that counts the batches; by default the id of the
                streaming query.

        Raises:
            InvalidRows, UnknownTopics: some rows cannot be written; no row is.
            NotPenstock, AdminUnavailable: the admin address does not belong to a broker, or no
                broker responds.
        """
        frame, columns = self._arranged(batch)
        if owner is None:
            owner = query_of(batch)
        options = self._options
        with closing(self._admins()) as admins:
            if self._commits(admins).has(batch_id, owner):
                done = Appended(batch_id=batch_id, records=0, replayed=True, offsets={})
                return Staged(rows=0, commit=lambda: done, replayed=True)
            locations = staging_locations(admins)
        topics = {}
        if options.topic is not None:
            topics[options.topic] = find_topic(options.bootstrap, options.topic, options.security)
        task = _Task(
            options=options,
            batch_id=batch_id,
            columns=columns,
            locations=locations,
            topics=topics,
            shorten=self._shorten,
        )
        blobs = _collected(frame, task)
        return Staged(
            rows=sum(blob.records for blob in blobs),
            commit=partial(self._finish, batch_id, owner, blobs),
            check=partial(self._check, batch_id, owner, blobs),
        )

    def check(self, batch: DataFrame) -> None:
        """Check that the columns of a batch can be written; no row is read.

        Raises:
            InvalidRows, InvalidOption: a column is missing or has the wrong type.
        """
        self._arranged(batch)

    def _check(self, batch_id: int, owner: str | None, blobs: Sequence[Blob]) -> None:
        with closing(self._admins()) as admins:
            self._commits(admins).check(batch_id, owner, blobs)

    def _finish(self, batch_id: int, owner: str | None, blobs: Sequence[Blob]) -> Appended:
        with closing(self._admins()) as admins:
            return self._commits(admins).commit(batch_id, owner, blobs)

    def _admins(self) -> BrokerAdmins:
        options = self._options
        return BrokerAdmins(options.admin_url, security=admin_security(options.security))

    def _commits(self, admins: BrokerAdmins) -> Commits:
        options = self._options
        return Commits(
            admins,
            self.application,
            timeout_seconds=options.commit_timeout_seconds,
            transactional=options.transactional,
        )

    def _arranged(self, batch: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
        columns = written_columns(batch.schema, topic=self._options.topic)
        missing = [name for name in self._ordered_by if name not in batch.columns]
        if missing:
            raise InvalidOption(
                "ordered_by", ", ".join(self._ordered_by),
                f"the batch has no column {missing[0]}. Its columns: {', '.join(batch.columns)}",
            )  # fmt: skip
        if self._ordered_by:
            # One task gets all rows of a key, or of a partition if the rows name it.
            together = [name for name in (TOPIC, KEY, PARTITION) if name in columns]
            if KEY in together and PARTITION in together:
                together.remove(KEY)
            if together:
                batch = batch.repartition(*together)
            batch = batch.sortWithinPartitions(*self._ordered_by)
        return batch.select(*columns), columns


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    options: SinkOptions
    batch_id: int
    columns: tuple[str, ...]
    locations: tuple[StagingLocation, ...]
    topics: dict[str, Target]
    shorten: Shorten | None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        task, number = (0, 0) if context is None else (context.partitionId(), _attempt(context))
        attempt = Attempt(
            application=str(self.options.application),
            batch_id=self.batch_id,
            partition=task,
            number=number,
        )
        staged = stage(
            batches,
            self.options,
            attempt,
            columns=self.columns,
            locations=self.locations,
            topics=self.topics,
            shorten=self.shorten,
        )
        for index, item in enumerate(staged):
            blob = None if item.blob is None else item.blob.to_json()
            values: list[list[Any]] = [[task], [index], [blob], [item.problem]]
            yield pa.RecordBatch.from_arrays(
                [pa.array(v, f.type) for v, f in zip(values, _STAGED_ARROW, strict=True)],
                schema=_STAGED_ARROW,
            )


def _attempt(context: TaskContext) -> int:
    return int(context.taskAttemptId())


def _collected(frame: DataFrame, task: _Task) -> list[Blob]:
    """Run the staging tasks and return their blobs, in the order of tasks.

    Raises:
        InvalidRows: a task found rows that cannot be written.
    """
    rows = frame.mapInArrow(task, _STAGED).collect()
    for row in rows:
        if row.problem is not None:
            raise InvalidRows(row.problem)
    return [blob_from_json(row.blob) for row in sorted(rows, key=lambda r: (r.task, r.number))]
