"""Ids, paths and temporary names: written, parsed and rejected ones."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import InvalidError
from penstock.outbox.errors import InvalidBatchId, InvalidPartitionId, InvalidPath
from penstock.outbox.layout import (
    AT_MS_MAX,
    HOUR_MS,
    PATH_CHARS_MAX,
    PayloadLocation,
    batch_directory,
    check_batch_id,
    check_partition_id,
    data_path,
    hour_directory,
    is_temporary,
    parse_directory,
    parse_path,
    temporary_name,
)

AT = datetime(2026, 5, 4, 7, 59, 59, 999000, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)
PATH = "flights/year=2026/month=05/day=04/hour=07/batch-abc123/data.bin"
partition_ids = st.from_regex(r"[A-Za-z0-9._=\-]{1,200}", fullmatch=True).filter(
    lambda text: text not in {".", ".."}
)
batch_ids = st.from_regex(r"[A-Za-z0-9_\-]{1,64}", fullmatch=True)


def test_the_path_of_the_source() -> None:
    assert data_path("flights", "abc123", AT_MS) == PATH
    place = parse_path(PATH)
    hour = int(datetime(2026, 5, 4, 7, tzinfo=UTC).timestamp()) * 1000
    assert place == PayloadLocation(partition_id="flights", hour_start_ms=hour, batch_id="abc123")
    assert f"{place.directory}/data.bin" == PATH


@given(partition_ids, batch_ids, st.integers(0, AT_MS_MAX))
def test_round_trips(partition_id: str, batch_id: str, at_ms: int) -> None:
    path = data_path(partition_id, batch_id, at_ms)
    place = parse_path(path)
    assert (place.partition_id, place.batch_id) == (partition_id, batch_id)
    assert place.hour_start_ms == at_ms - at_ms % HOUR_MS
    assert data_path(partition_id, batch_id, place.hour_start_ms) == path
    assert len(path) <= PATH_CHARS_MAX
    assert ".." not in path.split("/")
    assert all(len(part) <= 255 for part in path.split("/"))


@pytest.mark.parametrize(
    "text",
    [
        "", ".", "..", "a/b", "../up", "/etc", "a\0b", "a b", "ünicode", "\N{FULLWIDTH SOLIDUS}",
        "a\n", "a\\b", "x" * 201, "~", "*", "\udcff", None, 7, b"bytes",
    ],
)  # fmt: skip
def test_partition_ids_that_are_refused(text: object) -> None:
    with pytest.raises(InvalidPartitionId) as caught:
        check_partition_id(text)
    assert isinstance(caught.value, InvalidError)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    "text", ["", ".", "..", "a/b", "a.b", "a=b", "a\0", "é", "a\n", "x" * 65, None, 7, b"b"]
)
def test_batch_ids_that_are_refused(text: object) -> None:
    with pytest.raises(InvalidBatchId):
        check_batch_id(text)


@pytest.mark.parametrize("text", ["...", "-", "=", "a", "year=2026", "x" * 200, ".hidden"])
def test_accepted_partition_ids(text: str) -> None:
    assert check_partition_id(text) == text
    assert parse_path(data_path(text, "b", 0)).partition_id == text


@pytest.mark.parametrize("at_ms", [-1, AT_MS_MAX + 1, 10**30, 1.5, "0", None])
def test_times_that_are_refused(at_ms: int) -> None:
    with pytest.raises(InvalidPath, match="at_ms must be a whole number from 0"):
        hour_directory("p", at_ms)


def test_the_last_hour_there_is() -> None:
    path = batch_directory("p", "b", AT_MS_MAX)
    assert path == "p/year=9999/month=12/day=31/hour=23/batch-b"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "data.bin",
        "/" + PATH,
        PATH + "/",
        PATH + "x",
        PATH.replace("data.bin", "data.bin.tmp.a.1"),
        PATH.replace("flights", ".."),
        PATH.replace("flights", "a/b"),
        PATH.replace("flights", ""),
        PATH.replace("month=05", "month=5"),
        PATH.replace("month=05", "month=13"),
        PATH.replace("day=04", "day=31").replace("month=05", "month=02"),
        PATH.replace("hour=07", "hour=24"),
        PATH.replace("year=2026", "year=1969"),
        PATH.replace("year=2026", "year=0000"),
        PATH.replace("year=2026", "year=२०२६"),
        PATH.replace("batch-abc123", "batch-"),
        PATH.replace("batch-abc123", "abc123"),
        PATH.replace("/hour", "//hour"),
        PATH.replace("abc123", "a\0b"),
        PATH + "\n",
        "x" * 10_000,
    ],
)
def test_paths_that_are_none(path: str) -> None:
    with pytest.raises(InvalidPath):
        parse_path(path)


@given(st.text(max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        place = parse_directory(text)
    except InvalidPath:
        return
    assert place.directory == text


@pytest.mark.parametrize(
    ("name", "temporary"),
    [
        ("data.bin.tmp.abc.1", True),
        ("data.bin.tmp.ABC09.123456789", True),
        ("data.bin", False),
        ("data.bin.tmp", False),
        ("data.bin.tmp.abc", False),
        ("data.bin.tmp..1", False),
        ("data.bin.tmp.abc.1x", False),
        ("data.bin.tmp.a/b.1", False),
        ("data.bin.tmp.abc.1\n", False),
        ("xdata.bin.tmp.abc.1", False),
    ],
)
def test_names_of_temporary_files(name: str, temporary: bool) -> None:
    assert is_temporary(name) is temporary


@pytest.mark.parametrize("token", ["", "a.b", "a/b", "../x", "x" * 33, "é"])
def test_tokens_that_are_refused(token: str) -> None:
    with pytest.raises(InvalidPath):
        temporary_name(token, 1)


@pytest.mark.parametrize("attempt", [-1, 10**9])
def test_attempts_that_are_refused(attempt: int) -> None:
    with pytest.raises(InvalidPath):
        temporary_name("a", attempt)
    assert is_temporary(temporary_name("a", 10**9 - 1))
