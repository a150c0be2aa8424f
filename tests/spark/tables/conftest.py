"""Fixtures of tests of tables: a zone with an hour twice, and a topic that requests a table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import Topic


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[None]:
    """A session's zone whose clocks show an hour twice in autumn."""
    before = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.fixture
def kept(topic: Topic) -> Iterator[Topic]:
    topic.client.alter_configs("topic", topic.name, {"table.format": "delta"})
    yield topic
    topic.client.alter_configs("topic", topic.name, delete=["table.format"])
