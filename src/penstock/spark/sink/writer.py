"""Sink `format("penstock")` for `df.writeStream` and `df.write`.

As with `LogSink`, tasks stage blobs and the driver makes one commit that names them. Spark creates
a new writer in another process for each step, so the tasks' messages carry the data of the commit.
In a stream, a task reads the query's id and the batch number from its `TaskContext`. The query's id
owns the batch numbers and is, by default, also the application.

Without options `application` and `batchId`, a batch write gets a unique application name, which is
deleted afterwards. With both options, a repeated write appends nothing.

`abort` deletes nothing, because Spark also calls it after a completed commit whose response was
lost. The broker deletes uncommitted blobs by age.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_RANDOMNESS
from penstock.client.security import admin_security
from penstock.spark.admin_http import BrokerAdmins
from penstock.spark.errors import InvalidOption, InvalidRows
from penstock.spark.sink.blobs import Blob
from penstock.spark.sink.commits import Appended, Commits
from penstock.spark.sink.options import SinkOptions, written_columns
from penstock.spark.sink.staging import Attempt, stage
from penstock.spark.staged import QUERY_PROPERTY

BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTask(WriterCommitMessage):
    """Message of one task to the driver: its staged blobs, and the batch that they belong to."""

    application: str
    owner: str | None
    batch_id: int
    task: int
    blobs: tuple[Blob, ...]
    problem: str | None = None


class NoBatch(InvalidOption):
    """Streaming task whose context lacks the query's id or the batch number."""


class LogBatchWriter(DataSourceArrowWriter):
    """Writer of `df.write.format("penstock").mode("append")`: one commit per data frame."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        _check_mode(overwrite)
        self._options = options
        self._columns = written_columns(schema, topic=options.topic)
        self._once = options.batch_id is None
        if self._once and options.transactional:
            raise InvalidOption(
                "transactional", True, "a batch write requires options application and batchId"
            )
        if self._once:
            self._application = f"write/{SYSTEM_RANDOMNESS.uuid()}"
            self._batch_id = 0
        else:
            self._application = str(options.application)
            self._batch_id = int(options.batch_id or 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        return _staged(
            iterator, self._options, self._columns, self._application, None, self._batch_id
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        tasks = _tasks(messages)
        _commit(self._options, self._application, None, self._batch_id, tasks, forget=self._once)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing; the broker deletes uncommitted blobs by age."""


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writer of `df.writeStream.format("penstock")`: one commit for each batch."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        _check_mode(overwrite)
        if options.batch_id is not None:
            raise InvalidOption("batchId", options.batch_id, "only for df.write; omit it")
        self._options = options
        self._columns = written_columns(schema, topic=options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_PROPERTY)
        batch = None if context is None else context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise NoBatch(QUERY_PROPERTY, query, "the task's context has no query or batch number")
        application = self._options.application or f"spark/{query}"
        return _staged(iterator, self._options, self._columns, application, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        tasks = _tasks(messages)
        if not tasks:
            return  # a batch without tasks has no rows
        first = tasks[0]
        if any(task.batch_id != batchId for task in tasks):
            numbers = sorted({task.batch_id for task in tasks})
            raise NoBatch(BATCH_ID, numbers, f"must be {batchId}, the batch that Spark commits")
        _commit(self._options, first.application, first.owner, batchId, tasks)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing; the broker deletes uncommitted blobs by age."""


def _check_mode(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("mode", "overwrite", "a log cannot be overwritten. Use mode append")


def _staged(
    batches: Iterator[pa.RecordBatch],
    options: SinkOptions,
    columns: Sequence[str],
    application: str,
    owner: str | None,
    batch_id: int,
) -> StagedTask:
    context = TaskContext.get()
    task, number = (0, 0) if context is None else (context.partitionId(), context.taskAttemptId())
    attempt = Attempt(application=application, batch_id=batch_id, partition=task, number=number)
    blobs: list[Blob] = []
    problem: str | None = None
    for item in stage(batches, options, attempt, columns=columns):
        if item.blob is not None:
            blobs.append(item.blob)
        problem = problem or item.problem
    return StagedTask(
        application=application,
        owner=owner,
        batch_id=batch_id,
        task=task,
        blobs=tuple(blobs),
        problem=problem,
    )


def _tasks(messages: list[WriterCommitMessage | None]) -> list[StagedTask]:
    """Return the tasks' messages in the order of tasks.

    Raises:
        InvalidRows: a task found rows that cannot be written.
    """
    tasks = [message for message in messages if isinstance(message, StagedTask)]
    tasks.sort(key=lambda task: task.task)
    for task in tasks:
        if task.problem is not None:
            raise InvalidRows(task.problem)
    return tasks


def _commit(
    options: SinkOptions,
    application: str,
    owner: str | None,
    batch_id: int,
    tasks: list[StagedTask],
    *,
    forget: bool = False,
) -> Appended:
    admins = BrokerAdmins(options.admin_url, security=admin_security(options.security))
    try:
        commits = Commits(
            admins,
            application,
            timeout_seconds=options.commit_timeout_seconds,
            transactional=options.transactional,
        )
        done = commits.commit(batch_id, owner, [blob for task in tasks for blob in task.blobs])
        if forget:
            _forget(commits)
        return done
    finally:
        admins.close()


def _forget(commits: Commits) -> None:
    # The rows are already in the log, so an unreachable broker must not fail the write.
    try:
        commits.forget()
    except PenstockError:
        return
