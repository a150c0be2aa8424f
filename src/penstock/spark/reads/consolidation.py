"""Consolidation of diskless topics as a Spark job, for large backlogs.

    driver      backlogs, runs, reserved keys  <── a broker's admin address ──  swap of the rows
                    │ extents, no bytes                                            ▲
    executors       └──> read, check, stamp, PUT under the reserved key ──> new extents

A *run* is a sequence of adjacent extents of one partition, to be merged into one sealed segment.
Each Spark task writes one segment (`write_segment`). The broker then replaces the run's extents by
those of the segment. The driver works in rounds of a few runs per slot, because reservations of
keys expire.

If a job fails, the broker's sweeper deletes its unused objects, and a later job receives the
uncompleted runs again. If Spark starts a task twice, the second attempt finds that its key is in
use; then the run is left to the next job. If a broker consolidates the same run first, it rejects
this job's segment.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from uuid import UUID

import pyarrow as pa

from penstock.archive.planning import extent_from_json, extent_to_json
from penstock.archive.segments import write_segment
from penstock.base.errors import PenstockError, UnavailableError
from penstock.client.admin_http import Answer, Body
from penstock.client.security import admin_security
from penstock.control.values.diskless import ObjectLease, SegmentSwap
from penstock.spark.admin_http import BrokerAdmin
from penstock.spark.options import environment_options
from penstock.spark.reads.object_chunks import open_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


RUNS_PER_SLOT: Final = 2
"""Number of runs that one round assigns to each slot of the session."""

CALL_SECONDS: Final = 60.0
"""Longest time of one admin request, including retries."""

_INPUT: Final = "number int, run string"
_OUTPUT: Final = "number int, made string, error string"
_LOST: Final = frozenset({HTTPStatus.CONFLICT, HTTPStatus.MISDIRECTED_REQUEST})


class ConsolidationRefused(UnavailableError):
    """Rejection of a request by the broker; the message has its response."""

    code: ClassVar[str] = "broker_not_available"


class Run(NamedTuple):
    """Input of one task: adjacent extents of a partition as JSON, and the lease of the key to
    write.
    """

    topic: str
    topic_id: str
    partition: int
    extents: list[dict[str, Any]]
    lease: dict[str, Any]
    store: str

    @property
    def where(self) -> str:
        first, last = self.extents[0]["base_offset"], self.extents[-1]["next_offset"] - 1
        return f"{self.topic}-{self.partition}: offsets {first} to {last}"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Totals of one consolidation job."""

    partitions: int = 0
    segments: int = 0
    segment_bytes: int = 0
    extents: int = 0
    races_lost: int = 0
    failures: int = 0


def consolidate(
    spark: SparkSession,
    *,
    admin_url: str,
    slots: int,
    store_options: Mapping[str, str] | None = None,
    topic: str | None = None,
    all_ages: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Outcome:
    """Consolidate the diskless partitions that have a backlog, once.

    Args:
        spark: session whose executors can reach the object store.
        admin_url: admin address of a broker.
        slots: number of tasks that can run at the same time.
        store_options: object store options for the executors, in addition to their environment.
        topic: name of the only topic to consolidate; None for all topics.
        all_ages: whether recent and small extents are also merged.
        report: function that is called with one line for each written segment and each failure.

    Raises:
        ConsolidationRefused: the broker rejects a request, for example because it has no object
            store.
        AdminUnavailable: the broker does not respond.
    """
    work_queue = _WorkQueue(admin_url)
    outcome = Outcome()
    build = partial(build_rows, dict(store_options or {}))
    try:
        runs = work_queue.runs(topic, all_ages=all_ages, outcome=outcome)
        while batch := list(itertools.islice(runs, max(1, slots) * RUNS_PER_SLOT)):
            for run, made, error in _built(spark, batch, build):
                if made is None:
                    outcome.failures += 1
                    report(f"{run.where}: {error}")
                elif work_queue.complete(run, made):
                    outcome.segments += 1
                    outcome.segment_bytes += int(made["size_bytes"])
                    outcome.extents += len(run.extents)
                    report(f"{run.where}: {len(run.extents)} extents into {run.lease['key']}")
                else:
                    outcome.races_lost += 1
    finally:
        work_queue.close()
    return outcome


class _WorkQueue:
    def __init__(self, admin_url: str) -> None:
        self._address = BrokerAdmin(admin_url, security=admin_security(environment_options()))

    def runs(self, topic: str | None, *, all_ages: bool, outcome: Outcome) -> Iterator[Run]:
        """Yield the runs of all partitions; each run is requested only when the caller needs it."""
        found = self._call("GET", "/v1/diskless/backlogs").body["partitions"]
        ages = str(all_ages).lower()
        for backlog in found:
            if topic is not None and backlog["topic"] != topic:
                continue
            outcome.partitions += 1
            start: int | None = 0
            while start is not None:
                path = f"{_partition(backlog)}/runs?start={start}&all_ages={ages}"
                leased = self._call("POST", path).body
                if leased["run"]:
                    yield Run(
                        backlog["topic"], backlog["topic_id"], backlog["partition"],
                        leased["run"], leased["lease"], leased["store"],
                    )  # fmt: skip
                following = leased["next_start"]
                if following is not None and following <= start:
                    raise ConsolidationRefused(
                        f"{path}: next_start = {following} must be greater than start = {start}"
                    )
                start = following

    def complete(self, run: Run, made: Mapping[str, Any]) -> bool:
        """Report a written segment to the broker; return False if the run was already replaced."""
        body = json.dumps(
            {"object_id": run.lease["object_id"], "replaced": run.extents, **made}
        ).encode()
        sent = Body(pieces=[body], size_bytes=len(body), content_type="application/json")
        path = f"{_partition(run._asdict())}/segments"
        answer = self._address.call("POST", path, sent, timeout_seconds=CALL_SECONDS)
        if answer.status in _LOST:
            return False
        _check(path, answer)
        return True

    def _call(self, method: str, path: str) -> Answer:
        answer = self._address.call(method, path, timeout_seconds=CALL_SECONDS)
        _check(path, answer)
        return answer

    def close(self) -> None:
        self._address.close()


def _check(path: str, answer: Answer) -> None:
    if answer.status != HTTPStatus.OK:
        raise ConsolidationRefused(f"{path}: {answer.status} {answer.error}: {answer.message}")


def _partition(one: Mapping[str, Any]) -> str:
    return f"/v1/diskless/topics/{one['topic_id']}/partitions/{one['partition']}"


Built = tuple[Run, Mapping[str, Any] | None, str]


def _built(
    spark: SparkSession,
    runs: Sequence[Run],
    build: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Iterator[Built]:
    """Run the tasks; yield each run with its segment's size and extents, or an error message."""
    rows = [(number, json.dumps(run._asdict())) for number, run in enumerate(runs)]
    frame = spark.createDataFrame(rows, _INPUT).repartitionByRange(len(rows), "number")
    for row in frame.mapInArrow(build, _OUTPUT).collect():
        yield runs[row.number], None if row.made is None else json.loads(row.made), row.error


def build_rows(
    options: Mapping[str, str], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the segment of each row's run, on an executor; return its extents or the error.

    Errors are returned, not raised: a repeated task could not use the same key again.
    """
    for batch in batches:
        for number, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            made, error = None, None
            try:
                swap = asyncio.run(_build(Run(**json.loads(text)), options))
                extents = [extent_to_json(extent) for extent in swap.extents]
                made = json.dumps({"size_bytes": swap.size_bytes, "extents": extents})
            except PenstockError as failure:
                error = str(failure)
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([number], pa.int32()),
                    pa.array([made], pa.string()),
                    pa.array([error], pa.string()),
                ],
                names=["number", "made", "error"],
            )


async def _build(run: Run, options: Mapping[str, str]) -> SegmentSwap:
    store = open_here(run.store, options)
    try:
        return await write_segment(
            store,
            [extent_from_json(item) for item in run.extents],
            (UUID(run.topic_id), run.partition),
            ObjectLease(**run.lease),
        )
    finally:
        await store.close()
