"""Rows behind the watermark or without a time: each is in its window or among the dead letters,
never in both."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from hypothesis import strategies as st

from tests.formats.drawn import SPARK_EXAMPLES, drawn
from tests.spark.pipeline.conftest import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
BATCHES: Final = 4
RECORDS: Final = max(240, SPARK_EXAMPLES)
ODD_TIMES: Final = ("0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z")
late_seconds = st.sampled_from([0, 5, 10, 60, 300, 301, 599, 600, 601, 900]) | st.integers(0, 4_000)
seconds = st.builds(int.__sub__, st.sampled_from([0, 299, 300, 420]), late_seconds)
times = st.none() | st.sampled_from(ODD_TIMES) | seconds | seconds | seconds


def clicks(*, timed: bool = False) -> list[list[dict[str, Any]]]:
    """Batches of clicks whose times run on from batch to batch: many are far behind, some on the
    edge, some before 1970, and some have no time unless all are `timed`."""
    kinds = times.filter(lambda at: at is not None) if timed else times
    found: list[list[dict[str, Any]]] = [[] for _ in range(BATCHES)]
    for number, (at, page) in enumerate(drawn(st.tuples(kinds, st.sampled_from("ab")), RECORDS)):
        batch = number % BATCHES
        if isinstance(at, int):
            at = (BEGIN + timedelta(seconds=600 * batch + at)).isoformat()
        found[batch].append({"n": number, "page": page, "at": at})
    return found


WINDOW: Final = "window(at, '5 minutes')"
SLIDING: Final = "window(at, '10 minutes', '5 minutes')"
SESSION: Final = "session_window(at, '5 minutes')"
TUMBLING: Final = (
    f"select {WINDOW}.start as start, page, collect_list(n) as numbers from clicks "
    f"group by {WINDOW}, page"
)
OTHERS: Final = {
    "sessions": f"select {SESSION} as start, collect_list(n) as numbers from clicks "
    f"group by {SESSION}, page",
    "moments": "select at as start, collect_list(n) as numbers from clicks group by at",
    "distinct": "select distinct at as start, n, _record from clicks",
    "behind another step": f"select {WINDOW} as start, collect_list(n) as numbers "
    f"from (select n, at, _record from clicks where page <> 'z') group by {WINDOW}",
    "outer joined": "select a.n from clicks a left join clicks b "
    "on a.n = b.n and a.at >= b.at and a.at <= b.at + interval 1 hour",
    "joined": "select a.n from clicks a join clicks b "
    "on a.n = b.n and a.at >= b.at and a.at <= b.at + interval 1 hour",
}


def text(pipeline: Pipeline, topic: str, dead: str, sql: str, more: str = "") -> str:
    """A pipeline file with a stateful step, whose rows have the numbers of its clicks."""
    return f"""
        name = "late-{pipeline.number}"
        [run]
        trigger = "once"
        max_records = {RECORDS // BATCHES}
        [source.clicks]
        topic = "{topic}"
        format = "json"
        schema = "n bigint, page string, at timestamp"
        time = "at"
        delay = "60 seconds"
        {more}
        [step.counted]
        sql = '''
        {sql}
        '''
        [sink.counted]
        from = "counted"
        table = "counted"
        [errors]
        on_invalid = "drop"
        dead_letters = "{dead}"
    """


def late_numbers(pipeline: Pipeline, dead: str) -> Counter[int]:
    """The clicks among the dead letters."""
    found: Counter[int] = Counter()
    for letter in pipeline.records(dead):
        facts = {item["key"]: item["value"].decode() for item in letter["headers"]}
        assert facts["penstock.error.rule"] == "late"
        value = json.loads(letter["value"])
        why = "not after the watermark" if value["at"] else "is null, and rows without a time"
        assert why in facts["penstock.error.reason"]
        found[value["n"]] += 1
    return found


def kept_numbers(pipeline: Pipeline) -> Counter[int]:
    rows = pipeline.rows("counted")
    return Counter(n for row in rows for n in row.get("numbers") or [row["n"]])


def run_through(
    pipeline: Pipeline, topic: str, file: str, *, timed: bool = False
) -> tuple[set[int], int]:
    """Send clicks and run twice; then one that closes all windows. Returns all, and those late."""
    sent: set[int] = set()
    late = 0
    for batch, some in enumerate(clicks(timed=timed)):
        sent |= {item["n"] for item in some}
        pipeline.send(topic, some)
        if batch == BATCHES // 2:
            late += sum(item.counts.get("rejected.late", 0) for item in pipeline.run(file).values())
    for n in (-1, -2):
        at = BEGIN + timedelta(days=1, hours=-n)
        pipeline.send(topic, [{"n": n, "page": "a", "at": at.isoformat()}] * (RECORDS // BATCHES))
    late += sum(item.counts.get("rejected.late", 0) for item in pipeline.run(file).values())
    return sent, late


def check(pipeline: Pipeline, sql: str, *, timed: bool = False) -> None:
    topic, dead = pipeline.topic("clicks"), pipeline.topic("dead")
    sent, counted = run_through(pipeline, topic, text(pipeline, topic, dead, sql), timed=timed)
    late = late_numbers(pipeline, dead)
    kept = Counter({n: count for n, count in kept_numbers(pipeline).items() if n >= 0})
    assert kept + late == Counter(dict.fromkeys(sent, 1))
    assert counted == late.total() > 0


def test_each_row_is_in_its_window_or_a_dead_letter(pipeline: Pipeline) -> None:
    check(pipeline, TUMBLING)


@pytest.mark.long
@pytest.mark.parametrize("name", OTHERS)
def test_each_row_is_taken_by_other_state_or_a_dead_letter(pipeline: Pipeline, name: str) -> None:
    check(pipeline, OTHERS[name], timed=name == "joined")  # null matches nothing, as in all SQL


@pytest.mark.long
def test_a_row_in_several_windows_is_a_dead_letter_where_it_misses_one(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("clicks"), pipeline.topic("dead")
    sql = f"select {SLIDING} as start, collect_list(n) as numbers from clicks group by {SLIDING}"
    sent, counted = run_through(pipeline, topic, text(pipeline, topic, dead, sql))
    late, kept = late_numbers(pipeline, dead), kept_numbers(pipeline)
    assert counted == late.total() > 0
    for number in sent:
        assert kept[number] <= 2
        assert late[number] == (kept[number] < 2)


@pytest.mark.long
def test_late_rows_of_deduplication_are_dead_letters_and_repeated_ones_are_not(
    pipeline: Pipeline,
) -> None:
    topic, dead = pipeline.topic("clicks"), pipeline.topic("dead")
    file = text(pipeline, topic, dead, "select n from clicks", 'deduplicate = ["n"]')
    sent, _ = run_through(pipeline, topic, file)
    late, kept = late_numbers(pipeline, dead), kept_numbers(pipeline)
    assert set(late) | set(kept) == sent | {-1, -2}
    assert not set(late) & set(kept)
    assert max(kept.values()) == 1


@pytest.mark.long
def test_late_rows_without_their_record_are_counted(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("clicks"), pipeline.topic("dead")
    sql = (
        f"select {WINDOW} as start, collect_list(n) as numbers "
        f"from (select n, at from clicks) group by {WINDOW}"
    )
    sent, counted = run_through(pipeline, topic, text(pipeline, topic, dead, sql))
    kept = [n for n in kept_numbers(pipeline).elements() if n >= 0]
    assert len(kept) + counted == len(sent)
    assert counted > 0
    assert not pipeline.records(dead)


@pytest.mark.long
def test_late_rows_are_dropped_and_counted_where_the_file_says_so(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("clicks"), pipeline.topic("dead")
    file = text(pipeline, topic, dead, TUMBLING).replace(
        'on_invalid = "drop"', 'on_invalid = "drop"\n        on_late = "drop"'
    )
    sent, counted = run_through(pipeline, topic, file)
    kept = [n for n in kept_numbers(pipeline).elements() if n >= 0]
    assert len(kept) + counted == len(sent)
    assert not pipeline.records(dead)
