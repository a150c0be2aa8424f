"""Options: what is read of them, and what is refused by name."""

from __future__ import annotations

import pytest

from penstock.records.extents import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from penstock.spark.errors import InvalidOption
from penstock.spark.options import SourceOptions, parse
from penstock.spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS


def options(**more: str) -> SourceOptions:
    return parse({"bootstrap": "h:1", "subscribe": "t"} | more)


def test_defaults() -> None:
    read = options()
    assert (read.bootstrap, read.topics, read.admin_url) == ("h:1", ("t",), None)
    assert read.start is None
    assert read.end is None
    assert read.fail_on_data_loss
    assert not read.limited
    assert read.columns == DEFAULT_COLUMNS
    assert read.parallelism >= 1


def test_names_are_read_in_any_case_and_by_sparks_names() -> None:
    read = parse({
        "KAFKA.bootstrap.SERVERS": "h:1",
        "subscribe": "b, a,b",
        "maxoffsetspertrigger": "5",
        "penstock.admin.url": "http://h:2/",
    })  # fmt: skip
    assert read.topics == ("a", "b")
    assert read.trigger_records_max == 5
    assert read.limited
    assert read.admin_url == "http://h:2"


def test_committed_records_are_read_by_default() -> None:
    given = {"bootstrap": "h:1", "subscribe": "a"}
    assert parse(given).isolation_level == READ_COMMITTED
    assert parse(given | {"isolationLevel": "read_uncommitted"}).isolation_level == READ_UNCOMMITTED
    as_kafka = parse(given | {"kafka.isolation.level": "read_uncommitted"})
    assert as_kafka.isolation == "read_uncommitted"
    with pytest.raises(InvalidOption, match="isolationLevel"):
        parse(given | {"isolationLevel": "serializable"})


def test_the_environment_fills_gaps_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "env:1")
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", "http://env:2")
    monkeypatch.setenv("PENSTOCK_SPARK_PARALLELISM", "3")
    assert parse({"subscribe": "t"}).bootstrap == "env:1"
    assert options().bootstrap == "h:1"
    assert options().admin_url == "http://env:2"
    assert options().parallelism == 3


def test_bounds() -> None:
    start = options(startingOffsets='{"t": {"0": 5, "1": -2}}').start
    assert start is not None
    assert (start.kind, start.each) == ("offset", {"t": {0: 5, 1: EARLIEST}})
    latest = options(startingOffsets="Latest").start
    assert latest is not None
    assert latest.everywhere == LATEST
    both = options(startingTimestamp="12", startingOffsets="earliest").start
    assert both is not None
    assert (both.kind, both.everywhere) == ("timestamp", 12)
    each = options(endingOffsetsByTimestamp='{"t": {"0": 9}}').end
    assert each is not None
    assert (each.kind, each.each) == ("timestamp", {"t": {0: 9}})


def test_columns() -> None:
    assert options(includeHeaders="true").columns == COLUMN_NAMES
    assert options(columns="value, OFFSET").columns == ("value", "offset")
    assert options(columns="value", includeHeaders="true").columns == ("value", "headers")


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("500", 500), ("30s", 30_000), ("15m", 900_000), ("2 h", 7_200_000)]
)
def test_durations(text: str, milliseconds: int) -> None:
    assert options(maxTriggerDelay=text).trigger_delay_max_ms == milliseconds


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("maxRowsPerTrigger", "5", "unknown option"),
        ("path", "/x", "unknown option"),
        ("maxRecordsPerTrigger", "0", "whole number from 1"),
        ("maxBytesPerTrigger", "1k", "whole number"),
        ("failOnDataLoss", "yes", "true or false"),
        ("startingOffsets", "first", "must be JSON"),
        ("startingOffsets", "[1]", "JSON object"),
        ("startingOffsets", '{"t": {"0": -3}}', "must be a partition and a"),
        ("startingOffsets", '{"t": {"zero": 3}}', "must be a partition and a"),
        ("startingOffsets", '{"t": {"0": 9223372036854775808}}', "must be a partition and a"),
        ("endingOffsets", "earliest", "cannot be earliest"),
        ("startingTimestamp", "2013-01-01", "whole number"),
        ("startingOffsetsByTimestampStrategy", "guess", "one of error, latest"),
        ("columns", "value,bytes", "column 'bytes' must be one of"),
        ("maxTriggerDelay", "soon", "must be a duration"),
        ("subscribePattern", "t.*", "set exactly one of"),
        ("subscribe", "a b", "topic name"),
        ("subscribe", " ,", "names no topic"),
    ],
)
def test_refusals_name_the_option(name: str, value: str, says: str) -> None:
    with pytest.raises(Exception, match=says) as refused:
        options(**{name: value})
    if isinstance(refused.value, InvalidOption):
        assert refused.value.code == "invalid_config"


@pytest.mark.parametrize(
    "value", ["", "{}", '{"t": []}', '{"t": [-1]}', '{"t": 1}', '{"t": [true]}']
)
def test_assign_must_name_partitions(value: str) -> None:
    with pytest.raises(InvalidOption, match="assign"):
        parse({"bootstrap": "h:1", "assign": value})


def test_assign() -> None:
    read = parse({"bootstrap": "h:1", "assign": '{"t": [2, 0, 2]}'})
    assert read.assign == {"t": (0, 2)}


def test_an_address_is_needed() -> None:
    with pytest.raises(InvalidOption, match="HOST:PORT"):
        parse({"subscribe": "t"})


def test_an_alias_may_repeat_but_not_contradict() -> None:
    assert options(**{"kafka.bootstrap.servers": "h:1"}).bootstrap == "h:1"
    with pytest.raises(InvalidOption, match="already set to another value"):
        options(**{"kafka.bootstrap.servers": "other:1"})


def test_options_of_the_store_are_taken_as_they_are_and_not_shown() -> None:
    read = options(**{"Penstock.Store.Options.AWS_secret_access_key": "Secret/Word"})
    assert read.store_options == {"aws_secret_access_key": "Secret/Word"}
    assert "Secret/Word" not in repr(read)
    with pytest.raises(InvalidOption, match="unknown option"):
        options(**{"penstock.store.options.": "x"})
    with pytest.raises(InvalidOption, match="unknown option"):
        options(**{"penstock.store.url": "x"})
