"""Schema ids of batches, against a check of each record as kafka-python reads it."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels import schema_ids as kernels
from penstock.records import Codec, InvalidRecord, decode_header
from penstock.records.columnar.schema_ids import (
    BATCH_SCHEMAS_MAX,
    HEADERS,
    Part,
    PartIds,
    SchemaId,
    SchemaIdReader,
)
from penstock.records.columnar.validation import check_records
from tests.records.nonsense import SPOILED, sealed
from tests.records.reference import Batch, Record, encode

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas so
    from kafka.record.memory_records import MemoryRecords

PARTS: tuple[Part, ...] = ("key", "value")
NUMBERS = st.one_of(st.integers(0, 3), st.integers(0, 2**32 - 1))
HALVES = st.one_of(
    st.sampled_from([bytes(8), b"\xff" * 8, bytes(7) + b"\1"]), st.binary(min_size=8, max_size=8)
)
IDS = st.one_of(
    NUMBERS.map(lambda number: b"\0" + struct.pack(">I", number)),
    st.tuples(HALVES, HALVES).map(lambda halves: b"\1" + b"".join(halves)),
)
BLOBS = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.tuples(IDS, st.binary(max_size=200)).map(b"".join),
    IDS.flatmap(lambda data: st.integers(0, len(data)).map(lambda size: data[:size])),
)
NAMES = st.sampled_from(
    [*HEADERS.values(), "__value_schema_ie", "__value_schema_i", "__value_schema_id2", "", "trace"]
)
RECORDS = st.tuples(BLOBS, BLOBS, st.lists(st.tuples(NAMES, BLOBS), max_size=3).map(tuple))


def batch_of(content: list[tuple[Any, ...]], codec: int) -> bytes:
    """A batch of (key, value, headers)."""
    records = tuple(Record(index, 1_000, *fields) for index, fields in enumerate(content))
    return encode(Batch(0, records, codec=codec))


def read(data: bytes, *parts: Part) -> tuple[PartIds, ...]:
    reader = SchemaIdReader(parts)
    check_records(data, decode_header(data), ids=reader)
    return reader.found


def listed(found: PartIds) -> list[SchemaId | str]:
    """The id of each record, or the word for a record without one."""
    words: list[SchemaId | str] = ["null", "absent", *found.ids]
    return [words[number] for number in found.numbers.tolist()]


def expected(record: Any, part: Part) -> SchemaId | str:
    """The id of one record, as Confluent's deserializers look for it."""
    data = record.key if part == "key" else record.value
    if data is None:
        return "null"
    named = [value for name, value in record.headers if name == HEADERS[part]]
    if named and named[-1] is not None:
        data = named[-1]
    if data[:1] == b"\0" and len(data) >= 5:
        return int(struct.unpack(">I", data[1:5])[0])
    if data[:1] == b"\1" and len(data) >= 17:
        return UUID(bytes=bytes(data[1:17]))
    return "absent"


@pytest.mark.parametrize("codec", list(Codec))
@given(st.lists(RECORDS, min_size=1, max_size=30))
def test_ids_are_those_that_other_libraries_find(
    codec: Codec, content: list[tuple[Any, ...]]
) -> None:
    data = batch_of(content, codec)
    others = list(MemoryRecords(data).next_batch())
    for found in read(data, *PARTS):
        wanted = [expected(record, found.part) for record in others]
        assert listed(found) == wanted
        assert found.without_id() == [at for at, word in enumerate(wanted) if word == "absent"]
        assert found.absent == wanted.count("absent")
        assert len(set(found.ids)) == len(found.ids)
        for chosen in (set(found.ids[::2]), set(found.ids), {-1}):
            places = [at for at, word in enumerate(wanted) if word in chosen]
            assert found.with_ids(chosen) == places


@given(st.lists(RECORDS, min_size=1, max_size=8), st.data())
def test_changed_bytes_are_refused_as_without_ids(
    content: list[tuple[Any, ...]], draw: st.DataObject
) -> None:
    data = bytearray(batch_of(content, 0))
    for _ in range(draw.draw(st.integers(1, 3))):
        data[draw.draw(st.integers(61, len(data) - 1))] = draw.draw(st.integers(0, 255))
    header = decode_header(data)

    def refusal(check: Callable[[], None]) -> tuple[object, ...]:
        try:
            check()
        except InvalidRecord as error:
            return str(error), error.records
        return ()

    plain = refusal(lambda: check_records(data, header))
    for part in PARTS:
        ids = SchemaIdReader([part])
        assert refusal(lambda ids=ids: check_records(data, header, ids=ids)) == plain  # type: ignore[misc]


@pytest.mark.parametrize("name", SPOILED)
def test_nonsense_is_refused(name: str) -> None:
    section, count, record, reason = SPOILED[name]
    with pytest.raises(InvalidRecord, match=f"record {record} of {count}: .*{reason}") as refused:
        read(sealed(section, count), "value")
    assert refused.value.records == (record,)


def test_more_records_than_fit_are_refused_before_they_take_memory() -> None:
    with pytest.raises(InvalidRecord, match="do not fit into"):
        read(sealed(bytes(60), 2**31 - 1), "value")


def numbered(numbers: list[int]) -> bytes:
    values = [b"\0" + struct.pack(">I", number) for number in numbers]
    return batch_of([(None, value, ()) for value in values], 0)


def test_a_batch_has_up_to_a_thousand_schemas() -> None:
    dice = random.Random(0)
    numbers = [dice.randrange(2**32) for _ in range(BATCH_SCHEMAS_MAX)]
    (found,) = read(numbered(numbers * 2), "value")
    assert listed(found) == numbers * 2
    in_order = list(range(BATCH_SCHEMAS_MAX))
    (found,) = read(numbered(in_order), "value")
    assert found.ids == tuple(in_order)
    with pytest.raises(InvalidRecord, match=f"more than {BATCH_SCHEMAS_MAX} different") as refused:
        read(numbered([*in_order, 7, BATCH_SCHEMAS_MAX]), "value")
    assert refused.value.records == (BATCH_SCHEMAS_MAX + 1,)


def test_ids_that_share_a_slot_are_not_searched_for_ever() -> None:
    """Numbers that the hash of the kernel maps to one slot are refused after some probes."""
    spread, mask = int(kernels._SPREAD), kernels.SLOTS_PER_ID * BATCH_SCHEMAS_MAX - 1

    def slot(number: int) -> int:
        mixed = number * spread % 2**64
        return (mixed ^ mixed >> 32) & mask

    alike = [number for number in range(1_000_000) if slot(number) == 5][:65]
    others = [1] * BATCH_SCHEMAS_MAX
    (found,) = read(numbered([*alike[:64], *others]), "value")
    assert found.ids[:64] == tuple(alike[:64])
    with pytest.raises(InvalidRecord, match="different schema ids"):
        read(numbered([*alike, *others]), "value")


def test_ids_that_share_a_slot_are_different() -> None:
    """GUIDs with one lower half, and numbers, all in one slot of a small table."""
    mask = 4 * kernels.SLOTS_PER_ID - 1

    def slot(high: int, low: int) -> int:
        mixed = low * int(kernels._SPREAD) % 2**64 ^ high * int(kernels._SPREAD_HIGH) % 2**64
        return (mixed ^ mixed >> 32) & mask

    highs = [high for high in range(1_000) if slot(high, 5) == slot(0, 5)][:3]
    ids: list[SchemaId] = [UUID(int=high << 64 | 5) for high in highs]
    values = [b"\1" + UUID(int=high << 64 | 5).bytes for high in highs]
    values.append(b"\0" + struct.pack(">I", 5))
    for turn in range(4):
        turned = values[turn:] + values[:turn]
        (found,) = read(batch_of([(None, value, ()) for value in turned], 0), "value")
        assert listed(found) == [*ids, 5][turn:] + [*ids, 5][:turn]


def test_an_id_is_as_long_as_its_magic_byte_says() -> None:
    guid = UUID(int=2**127 + 1)
    values = [b"\0\0\0\0\x05", b"\0\0\0\0", b"\1" + guid.bytes, b"\1" + guid.bytes[:15], b"\2" * 20]
    (found,) = read(batch_of([(None, value, ()) for value in values], 0), "value")
    assert listed(found) == [5, "absent", guid, "absent", "absent"]
