"""Records near the limits of their topics: relayed whole, and dead-lettered as large as may be."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from penstock.spark.pipeline.replay.dead_letters import DeadLetters, Filters
from penstock.spark.pipeline.runner import QueryFailed
from tests.spark.pipeline.conftest import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

LIMIT: Final = 20_000
RECORDS: Final = int(os.environ.get("PENSTOCK_EXAMPLES", "150"))
DEFAULT_LIMIT: Final = 1_048_588
OVERHEAD: Final = 61 + 12
"""Of a batch with one record without key and headers, around its value."""
RANDOM: Final = np.random.default_rng(58)


def send_alone(pipeline: Pipeline, topic: str, rows: list[dict[str, Any]], limit: int) -> None:
    """Write records in batches of their own, as large as the topic takes."""
    table = pa.Table.from_pylist(
        rows,
        schema=pa.schema(
            [
                ("key", pa.binary()),
                ("value", pa.binary()),
                ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            ]
        ),
    )
    compressed = [row["codec"] for row in rows]
    for codec in ("none", "zstd"):
        mask = pa.array([item == codec for item in compressed])
        pipeline.client.write_arrow(topic, table.filter(mask), batch_bytes=limit, codec=codec)


def records(count: int) -> list[dict[str, Any]]:
    """Records of any shape that a topic of `LIMIT` takes, most of them near it."""
    found = []
    for number in range(count):
        shrinks = number % 5 == 0
        size = int(RANDOM.integers(0, 300) if number % 7 == 0 else RANDOM.integers(-3_000, 1))
        room = LIMIT - OVERHEAD - 40 + size if size < 0 else size
        headers = []
        if number % 4 == 0:
            part = int(RANDOM.integers(0, room + 1))
            headers, room = [{"key": "h", "value": RANDOM.bytes(part)}], max(0, room - part - 20)
        key = RANDOM.bytes(min(room, 15_000)) if number % 11 == 0 else None
        room -= len(key or b"")
        value: bytes | None = b"\xff" + RANDOM.bytes(max(0, room - 1))
        if shrinks:
            value = b"\xff" * (LIMIT * 3)
        found.append(
            {"key": key, "value": value, "headers": headers, "codec": "zstd" if shrinks else "none"}
        )
    return found


def test_records_near_the_limit_are_relayed_dead_lettered_and_put_back(pipeline: Pipeline) -> None:
    source, relayed, dead = (pipeline.topic(name, 2) for name in ("in", "out", "dead"))
    for topic in (source, relayed, dead):
        pipeline.client.alter_configs("topic", topic, {"max.message.bytes": str(LIMIT)})
    rows = records(RECORDS)
    send_alone(pipeline, source, rows, LIMIT)
    text = f"""
        name = "large-{pipeline.number}"
        [run]
        trigger = "once"
        [source.texts]
        topic = "{source}"
        format = "json"
        schema = "n bigint"
        [source.all]
        topic = "{source}"
        [sink.lake]
        from = "texts"
        table = "lake"
        [sink.copy]
        from = "all"
        topic = "{relayed}"
        key = "_record.key"
        headers = "_record.headers"
        value = "value"
        [errors]
        dead_letters = "{dead}"
    """
    pipeline.run(text)
    sent = Counter((row["key"], row["value"]) for row in rows)
    assert Counter((row["key"], row["value"]) for row in pipeline.records(relayed)) == sent
    letters = pipeline.records(dead)
    originals = {(item["partition"], item["offset"]): item for item in pipeline.records(source)}
    assert len(letters) == len(originals) == RECORDS
    whole = 0
    for letter in letters:
        facts = {
            item["key"].removeprefix("penstock.error."): item["value"] for item in letter["headers"]
        }
        original = originals.pop((int(facts["partition"]), int(facts["offset"])))
        assert (original["value"] or b"").startswith(letter["value"] or b"")
        if "truncated" in facts:
            assert facts["truncated"].startswith(b"value=%d" % len(original["value"]))
        else:
            whole += 1
            assert [letter[name] for name in ("key", "value")] == [
                original[name] for name in ("key", "value")
            ]
    assert not originals
    assert 0 < whole < RECORDS
    # Those that are whole go back, though the headers of the replay would make some too large.
    spec = pipeline.write(text)
    replays = DeadLetters(spec, pipeline.spark)
    [group] = replays.look(Filters()).groups
    assert (group["letters"], group["stuck"]) == (RECORDS, RECORDS - whole)
    [done] = replays.replay(Filters(), by="test")
    assert done.records == whole
    assert len(pipeline.records(source)) == RECORDS + whole


@pytest.mark.long
def test_the_largest_record_of_a_topic_by_default(pipeline: Pipeline) -> None:
    source, dead = pipeline.topic("in"), pipeline.topic("dead")
    sizes = [1_000_000, 1_024_000, 1_048_000, DEFAULT_LIMIT - OVERHEAD]
    rows: list[dict[str, Any]] = [
        {"key": None, "value": b"\xff" + RANDOM.bytes(size - 1), "headers": [], "codec": "none"}
        for size in sizes
    ]
    send_alone(pipeline, source, rows, DEFAULT_LIMIT)
    state = pipeline.run(
        f"""
        name = "largest-{pipeline.number}"
        [run]
        trigger = "once"
        [source.texts]
        topic = "{source}"
        format = "json"
        schema = "n bigint"
        [sink.lake]
        from = "texts"
        table = "lake"
        [errors]
        dead_letters = "{dead}"
        """
    )["texts"]
    assert state.counts["dead_letters"] == len(sizes)
    found = [len(item["value"]) for item in pipeline.records(dead)]
    assert found[:3] == sizes[:3]
    assert 1_047_000 < found[3] < sizes[3]


def test_a_topic_too_small_for_any_dead_letter_is_named(pipeline: Pipeline) -> None:
    source, dead = pipeline.topic("in"), pipeline.topic("dead")
    pipeline.client.alter_configs("topic", dead, {"max.message.bytes": "100"})
    pipeline.send(source, [b"not json", {"n": 1}])
    with pytest.raises(QueryFailed, match=rf"topic {dead}, partition 0: a record exceeds"):
        pipeline.run(
            f"""
            name = "small-{pipeline.number}"
            [run]
            trigger = "once"
            [source.texts]
            topic = "{source}"
            format = "json"
            schema = "n bigint"
            [sink.lake]
            from = "texts"
            table = "lake"
            [errors]
            dead_letters = "{dead}"
            """
        )
    assert not (pipeline.folder / "lake" / "_delta_log").exists()
