"""Progress book, updated by Spark itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from penstock.base.errors import BugError, InvalidError
from penstock.spark.pipeline import progress_listener
from penstock.spark.pipeline.progress_listener import ProgressBook, TooManyQueries
from penstock.spark.pipeline.state import QueryState
from tests.spark.conftest import Topic

pytestmark = pytest.mark.spark

PATIENCE_SECONDS = 60


@pytest.fixture
def book(spark: SparkSession) -> Iterator[ProgressBook]:
    # How soon an idle query is reported.
    interval = "spark.sql.streaming.noDataProgressEventInterval"
    made = ProgressBook()
    spark.conf.set(interval, "200")
    spark.streams.addListener(made)
    yield made
    spark.streams.removeListener(made)
    spark.conf.unset(interval)


def state(book: ProgressBook, query: str = "q") -> QueryState:
    return next(item for item in book.states() if item.query == query)


def until(
    book: ProgressBook, holds: Callable[[QueryState], object], query: str = "q"
) -> QueryState:
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds(state(book, query)):
        assert time.monotonic() < end, state(book, query)
        threading.Event().wait(0.02)
    return state(book, query)


def start(frame: DataFrame, checkpoint: Path, take: Any, **trigger: Any) -> StreamingQuery:
    writer = frame.writeStream.queryName("q").foreachBatch(take)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start()


def twice(batch: DataFrame, batch_id: int) -> None:
    batch.count()
    batch.count()


def test_a_query_from_start_to_end(topic: Topic, book: ProgressBook, tmp_path: Path) -> None:
    topic.write(100)
    book.started("q", "p.q")
    book.started("other", "p.other")
    assert state(book) == QueryState(query="q", group_id="p.q", phase="starting")
    query = start(topic.stream(maxRecordsPerTrigger=60, groupId="p.q"), tmp_path / "c", twice)
    idle = until(book, lambda found: found.phase == "idle" and found.batch_id == 1)
    # Each row was computed twice and counts once.
    assert idle.counts["rows"] == 100
    assert idle.counts["batches"] == 2
    assert idle.counts["busy_ms"] >= idle.batch_ms > 0
    assert (idle.batch_rows, idle.lag_records, idle.rows_per_second) == (40, 0, 0.0)
    assert (idle.state_rows, idle.watermark) == (0, None)
    topic.write(7, first=100)
    again = until(book, lambda found: found.batch_id == 2)
    assert (again.batch_rows, again.counts["rows"]) == (7, 107)
    query.stop()
    book.ended("q")
    assert state(book).phase == "ended"
    assert state(book, "other").phase == "starting"


def test_a_batch_is_counted_after_what_it_wrote(
    spark: SparkSession, topic: Topic, tmp_path: Path
) -> None:
    topic.write(100)
    counted: list[int] = []

    def take_in(name: str) -> None:
        counted.append(state(made, name).counts.get("batches", 0))
        made.count(name, "written.lake", 50)

    made = ProgressBook(take_in)
    made.started("q", "p.q")
    spark.streams.addListener(made)
    try:
        frame = topic.stream(maxRecordsPerTrigger=50)
        start(frame, tmp_path / "c", twice, availableNow=True).awaitTermination()
        made.ended("q")
    finally:
        spark.streams.removeListener(made)
    assert counted == [0, 1]
    found = state(made).counts
    assert (found["batches"], found["rows"], found["written.lake"]) == (2, 100, 100)


def test_lag_is_what_a_batch_left(topic: Topic, book: ProgressBook, tmp_path: Path) -> None:
    topic.write(90)
    seen: list[int | None] = []
    ready = threading.Event()

    def take(batch: DataFrame, batch_id: int) -> None:
        batch.count()
        if batch_id:  # the one before was told of when this one runs
            seen.append(until(book, lambda found: found.batch_id == batch_id - 1).lag_records)
        if batch_id == 2:
            ready.set()

    book.started("q", "p.q")
    query = start(topic.stream(maxRecordsPerTrigger=30), tmp_path / "c", take)
    assert ready.wait(PATIENCE_SECONDS)
    found = until(book, lambda found: found.batch_id == 2)
    query.stop()
    assert seen == [60, 30]
    assert found.lag_records == 0


def test_state_and_watermark(topic: Topic, book: ProgressBook, tmp_path: Path) -> None:
    topic.write(100)
    frame = (
        topic.stream(maxRecordsPerTrigger=50)
        .withWatermark("timestamp", "1 second")
        .groupBy("timestamp", "key")
        .count()
    )
    book.started("q", "p.q")
    start(frame, tmp_path / "c", twice, availableNow=True).awaitTermination()
    found = until(book, lambda found: (found.batch_id or 0) >= 1)
    assert found.state_rows > 0
    assert found.state_bytes > 0
    assert found.watermark is not None
    assert found.watermark.startswith("1970-01-01T00:")


def test_a_failure_keeps_its_cause(topic: Topic, book: ProgressBook, tmp_path: Path) -> None:
    topic.write(1)

    def refuse(batch: DataFrame, batch_id: int) -> None:
        raise InvalidError("topic x: at most 3; take another")

    book.started("q", "p.q")
    query = start(topic.stream(), tmp_path / "c", refuse)
    with pytest.raises(Exception, match="STREAM_FAILED") as caught:
        query.awaitTermination()
    book.restarting("q", caught.value)
    restarting = state(book)
    assert (restarting.phase, restarting.restarts) == ("restarting", 1)
    assert restarting.error == "topic x: at most 3; take another"
    book.count("q", "written.lake", 5)
    book.held("q", 2)
    book.started("q", "p.q")
    assert (state(book).phase, state(book).error) == ("starting", None)
    query = start(topic.stream(), tmp_path / "c", twice, availableNow=True)
    query.awaitTermination()
    # A pause before the end makes it idle.
    found = until(book, lambda found: found.batch_id == 0)
    assert found.phase in ("running", "idle")
    assert (found.counts["written.lake"], found.counts["rows"]) == (5, 1)
    assert (found.held, found.restarts) == (2, 1)
    book.failed("q", caught.value)
    book.ended("q")
    assert (state(book).phase, state(book).error) == ("failed", restarting.error)


def test_late_reports_of_an_earlier_run_leave_the_phase(
    topic: Topic, book: ProgressBook, tmp_path: Path
) -> None:
    topic.write(5)
    book.started("q", "p.q")
    hold = threading.Event()
    inside = threading.Event()

    def wait(batch: DataFrame, batch_id: int) -> None:
        inside.set()
        hold.wait(PATIENCE_SECONDS)
        batch.count()

    query = start(topic.stream(), tmp_path / "c", wait, availableNow=True)
    assert inside.wait(PATIENCE_SECONDS)
    book.restarting("q")
    hold.set()
    query.awaitTermination()
    assert until(book, lambda found: found.batch_id == 0).phase == "restarting"


def test_what_is_not_known_is_refused(book: ProgressBook, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BugError, match="'nobody'"):
        book.count("nobody", "rows", 1)
    monkeypatch.setattr(progress_listener, "QUERIES_MAX", 1)
    book.started("one", "p.one")
    book.started("one", "p.one")
    with pytest.raises(TooManyQueries, match="at most 1 queries"):
        book.started("two", "p.two")


def test_counts_of_many_threads_add_up(book: ProgressBook) -> None:
    book.started("q", "p.q")

    def add() -> None:
        for _ in range(1_000):
            book.count("q", "written.lake", 1)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert state(book).counts == {"written.lake": 8_000}
