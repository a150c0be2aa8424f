"""Settings and bounds of the outbox from a constructor are checked like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.client import Client, InvalidArgument
from penstock.outbox import (
    ConsumerLimits,
    OutboxConsumer,
    OutboxReader,
    OutboxSettings,
    ReadPolicy,
    SweepRules,
)

AGES = {"retention_ms": 0, "orphan_age_ms": 0, "unreferenced_grace_ms": 0}


@pytest.mark.parametrize(
    ("kind", "given", "named"),
    [
        (OutboxSettings, {"in_flight_operations": 0}, "operations = 0: must be at least"),
        (OutboxSettings, {"threshold_bytes": -2}, "threshold.bytes = -2: must be at least -1"),
        (OutboxSettings, {"io_threads": 1.5}, "io.threads = 1.5: must be a whole number"),
        (OutboxSettings, {"durable": 1}, "durable = 1: must be true or false"),
        (OutboxSettings, {"root": None}, "root = None: must be text"),
        (ReadPolicy, {"attempts_max": 0}, "attempts_max = 0: must be a whole number of at least 1"),
        (ReadPolicy, {"pause_max_ms": -1}, "pause_max_ms = -1"),
        (ConsumerLimits, {"commit_messages": 0}, "commit_messages = 0"),
        (ConsumerLimits, {"dedup_age_ms": "1"}, "dedup_age_ms = '1'"),
        (SweepRules, {**AGES, "retention_ms": -1}, "retention_ms = -1"),
    ],
)
def test_refuses_what_cannot_be(kind: type[Any], given: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidSetting, match=named):
        kind(**given)


@pytest.mark.parametrize("bytes_max", [0, -1, 1.5, "1", True])
def test_a_reader_needs_a_number_of_bytes(tmp_path: Path, bytes_max: Any) -> None:
    with pytest.raises(InvalidError, match=f"bytes_max = {bytes_max!r}: must be"):
        OutboxReader(tmp_path, bytes_max=bytes_max)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"group": ""}, "group = ''"),
        ({"topic": None}, "topic = None"),
        ({"partitions": [-1]}, "partitions = -1"),
        ({"start": "beginning"}, "start = 'beginning': must be earliest or latest"),
    ],
)
def test_a_consumer_is_refused_before_it_asks(
    tmp_path: Path, words: dict[str, Any], named: str
) -> None:
    with Client("127.0.0.1:1") as client, OutboxReader(tmp_path) as reader:
        given = {"topic": "t", "group": "g", **words}
        with pytest.raises(InvalidArgument, match=named):
            OutboxConsumer(client, reader=reader, **given)
