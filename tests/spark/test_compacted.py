"""Compacted topics through the Spark source: by the protocol, from files and objects.

Files are read of a topic that was compacted and is so no more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.spark.sessions.source import PenstockSource
from tests.compacted_topics import KINDS, LEFT, RANGES, compacting, fill, value
from tests.spark.conftest import Topic

pytestmark = pytest.mark.spark
FILES = "local, no more compacted"


@pytest.fixture(scope="module")
def topics(spark: SparkSession) -> Iterator[dict[str, Topic]]:
    kinds = {**KINDS, FILES: KINDS["local"]}
    with compacting() as broker:
        made = {kind: Topic(broker, spark, 1, **configs) for kind, configs in kinds.items()}
        for topic in made.values():
            fill(topic.client, topic.name)
        made[FILES].client.alter_configs("topic", made[FILES].name, {"cleanup.policy": "delete"})
        yield made
        for topic in made.values():
            topic.client.close()


@pytest.fixture(params=[*KINDS, FILES])
def topic(topics: dict[str, Topic], request: pytest.FixtureRequest) -> Topic:
    return topics[request.param]


def given(topic: Topic, *, direct: bool, **more: Any) -> dict[str, str]:
    options = topic.options(**more)
    return {name: option for name, option in options.items() if direct or "admin" not in name}


def read(options: dict[str, str]) -> list[tuple[int, bytes]]:
    """Offsets and values, without a session: what Spark would call."""
    source = PenstockSource(options)
    reader = source.reader(source.schema())
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    return [
        row
        for batch in batches
        for row in zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
    ]


def at(topic: Topic, offset: int) -> str:
    return json.dumps({topic.name: {"0": offset}})


@pytest.mark.parametrize("direct", [True, False])
def test_ranges_that_begin_and_end_in_holes(topic: Topic, direct: bool) -> None:
    for start, end in RANGES:
        more = {"startingOffsets": at(topic, start), "endingOffsets": at(topic, end)}
        expected = [(offset, value(offset)) for offset in LEFT if start <= offset < end]
        assert read(given(topic, direct=direct, **more)) == expected, (start, end)
