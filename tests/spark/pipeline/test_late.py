"""Rows behind the watermark: each is in its window or among the dead letters, never in both."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

import pytest

from tests.spark.pipeline.conftest import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)
RECORDS: Final = int(os.environ.get("PENSTOCK_EXAMPLES", "240"))
BATCHES: Final = 4


def clicks(random: Random, batch: int, count: int) -> list[dict[str, Any]]:
    """Clicks whose times run on from batch to batch, many of them far behind, some on the edge."""
    found = []
    for number in range(count):
        late = random.choice([0, 0, 0, 5, 10, 60, 300, 301, 599, 600, 601, 900, 3_600])
        at = BEGIN + timedelta(seconds=600 * batch + random.choice([0, 299, 300, 420]) - late)
        found.append(
            {"n": batch * 1_000_000 + number, "page": random.choice("ab"), "at": at.isoformat()}
        )
    return found


def windows(pipeline: Pipeline, topic: str, dead: str) -> str:
    """Windows of several kinds over the same clicks; each has the numbers of its clicks."""
    return f"""
        name = "late-{pipeline.number}"
        [run]
        trigger = "once"
        [source.clicks]
        topic = "{topic}"
        format = "json"
        schema = "n bigint, page string, at timestamp"
        time = "at"
        delay = "60 seconds"
        [step.tumbling]
        sql = '''
        select window(at, '5 minutes').start as start, page, collect_list(n) as numbers
        from clicks group by window(at, '5 minutes'), page
        '''
        output = "update"
        [step.sliding]
        sql = '''
        select window(at, '10 minutes', '5 minutes').start as start, collect_list(n) as numbers
        from clicks group by window(at, '10 minutes', '5 minutes')
        '''
        output = "update"
        [step.moments]
        sql = "select at as start, collect_list(n) as numbers from clicks group by at"
        output = "update"
        [step.distinct]
        sql = "select distinct at as start, n, _record from clicks"
        [sink.tumbling]
        from = "tumbling"
        table = "tumbling"
        mode = "upsert"
        keys = ["start", "page"]
        [sink.sliding]
        from = "sliding"
        table = "sliding"
        mode = "upsert"
        keys = ["start"]
        [sink.moments]
        from = "moments"
        table = "moments"
        mode = "upsert"
        keys = ["start"]
        [sink.distinct]
        from = "distinct"
        table = "distinct"
        [errors]
        dead_letters = "{dead}"
    """


def late_numbers(pipeline: Pipeline, dead: str, query: str) -> Counter[int]:
    """The clicks among the dead letters of a query."""
    found: Counter[int] = Counter()
    for letter in pipeline.records(dead):
        facts = {one["key"]: one["value"].decode() for one in letter["headers"]}
        if facts["penstock.error.query"] == query and facts["penstock.error.rule"] == "late":
            assert "not after the watermark" in facts["penstock.error.reason"]
            found[json.loads(letter["value"])["n"]] += 1
    return found


def test_each_row_is_in_its_window_or_a_dead_letter(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("clicks", 2), pipeline.topic("dead")
    text = windows(pipeline, topic, dead)
    random = Random(58)
    sent: dict[int, str] = {}
    counted: Counter[str] = Counter()
    for batch in range(BATCHES):
        some = clicks(random, batch, RECORDS // BATCHES)
        sent |= {one["n"]: one["at"] for one in some}
        pipeline.send(topic, [(str(one["n"]), one) for one in some])
        states = pipeline.run(text)  # each run is a restart
        for name, state in states.items():
            counted[name] += state.counts.get("rejected.late", 0)
    for name in ("tumbling", "moments", "distinct"):
        late = late_numbers(pipeline, dead, name)
        rows = pipeline.rows(name)
        kept = Counter(n for row in rows for n in row.get("numbers") or [row["n"]])
        assert kept + late == Counter(dict.fromkeys(sent, 1)), name
        assert counted[name] == late.total() > 0
    late = late_numbers(pipeline, dead, "sliding")
    kept = Counter(n for row in pipeline.rows("sliding") for n in row["numbers"])
    assert counted["sliding"] == late.total() > 0
    for number in sent:
        # A click is in two windows; it is a dead letter where it missed one of them, or both.
        assert kept[number] + (0 if not late[number] else 2 - kept[number]) == 2
        assert (late[number] == 1) == (kept[number] < 2)


def test_late_rows_of_deduplication_joins_and_projected_rows(pipeline: Pipeline) -> None:
    topic, other, dead = (pipeline.topic(name) for name in ("clicks", "views", "dead"))
    text = f"""
        name = "late-{pipeline.number}"
        [run]
        trigger = "once"
        [source.clicks]
        topic = "{topic}"
        format = "json"
        schema = "n bigint, page string, at timestamp"
        time = "at"
        delay = "60 seconds"
        deduplicate = ["n"]
        [source.views]
        topic = "{other}"
        format = "json"
        schema = "n bigint, page string, at timestamp"
        time = "at"
        delay = "60 seconds"
        [step.joined]
        sql = '''
        select v.n, c.n as m from views v join views c
        on v.n = c.n and v.at >= c.at and v.at <= c.at + interval 1 hour
        '''
        [step.slim]
        sql = "select n, at from views"
        [step.counted]
        sql = '''
        select window(at, '5 minutes').start as start, collect_list(n) as numbers
        from slim group by window(at, '5 minutes')
        '''
        output = "update"
        [sink.once]
        from = "clicks"
        table = "once"
        [sink.joined]
        from = "joined"
        table = "joined"
        [sink.counted]
        from = "counted"
        table = "counted"
        mode = "upsert"
        keys = ["start"]
        [errors]
        dead_letters = "{dead}"
    """
    random = Random(59)
    sent: set[int] = set()
    counted: Counter[str] = Counter()
    for batch in range(3):
        some = clicks(random, batch, 60)
        sent |= {one["n"] for one in some}
        pipeline.send(topic, [*some, *some[:20]])  # a part of them twice
        pipeline.send(other, some)
        for name, state in pipeline.run(text).items():
            counted[name] += state.counts.get("rejected.late", 0)
    late = late_numbers(pipeline, dead, "clicks.once")
    kept = Counter(row["n"] for row in pipeline.rows("once"))
    assert set(late) | set(kept) == sent
    assert not set(late) & set(kept)
    late = late_numbers(pipeline, dead, "joined")
    joined = Counter(row["n"] for row in pipeline.rows("joined"))
    assert joined + late == Counter(dict.fromkeys(sent, 1))
    # Rows without their record cannot be dead letters: they are counted.
    numbers = Counter(n for row in pipeline.rows("counted") for n in row["numbers"])
    assert numbers.total() + counted["counted"] == len(sent)
    assert counted["counted"] > 0
    assert not late_numbers(pipeline, dead, "counted")


def test_late_rows_are_dropped_where_the_file_says_so(pipeline: Pipeline) -> None:
    topic, dead = pipeline.topic("clicks"), pipeline.topic("dead")
    text = windows(pipeline, topic, dead).replace("[errors]", '[errors]\n        on_late = "drop"')
    for seconds in (0, 3_600, 0):
        at = BEGIN + timedelta(seconds=seconds)
        pipeline.send(topic, [{"n": seconds, "page": "a", "at": at.isoformat()}])
        states = pipeline.run(text)
    assert states["tumbling"].counts["rejected.late"] == 1
    assert not pipeline.records(dead)
