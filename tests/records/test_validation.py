"""Validation rejects exactly the batches that the slow walk below rejects."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels import records as kernels
from penstock.kernels.sources import NATIVE
from penstock.records import InvalidRecord, RecordTooLarge, decode_header
from penstock.records.columnar import decode_batches
from penstock.records.columnar.validation import (
    CHAIN_RECORDS_MAX,
    REFUSED_RECORDS_NAMED_MAX,
    VALIDATED_BATCH_BYTES_MAX,
    check_chain,
    check_records,
    is_chain,
)
from penstock.records.header import HEADER_BYTES
from tests.records.nonsense import GOOD, KEYLESS, SPOILED, TIME_MS, framed, sealed
from tests.records.reference import (
    Reader,
    Record,
    Wrong,
    decode_record,
    encode_record,
    varint,
)
from tests.records.strategies import records


def is_right(section: bytes, count: int) -> bool:
    """The obvious way: byte by byte, record by record."""
    reader = Reader(section)
    try:
        right = all(decode_record(reader, 0, 0).offset == number for number in range(count))
    except Wrong:
        return False
    return right and reader.position == len(section)


def accepts(data: bytes, *, keyed: bool = False) -> bool:
    try:
        check_records(data, decode_header(data), keyed=keyed)
    except InvalidRecord:
        return False
    return True


def encoded(content: tuple[Record, ...]) -> bytes:
    base = content[0].timestamp
    return b"".join(encode_record(record, 0, base) for record in content)


def mutated(section: bytes, draw: st.DataObject) -> bytes:
    """Change, add or remove one to three bytes."""
    data = bytearray(section)
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data)))
        kind = draw.draw(st.sampled_from(["change", "change", "nudge", "insert", "delete", "cut"]))
        if kind == "insert":
            data[at:at] = draw.draw(st.binary(min_size=1, max_size=3))
        elif kind == "cut" and draw.draw(st.booleans()):
            del data[at:]
        elif at < len(data):
            if kind == "delete":
                del data[at]
            elif kind == "change":
                data[at] = draw.draw(st.integers(0, 255))
            else:
                data[at] = (data[at] + draw.draw(st.sampled_from([-2, -1, 1, 2]))) % 256
    return bytes(data)


@given(records(0, gaps=False), st.sampled_from([0, 0, 1, 2, 3, 4]))
def test_whatever_is_encoded_is_accepted(content: tuple[Record, ...], codec: int) -> None:
    data = sealed(encoded(content), len(content), codec=codec)
    assert accepts(data)
    check_chain(data, decode_header(data))
    assert accepts(data, keyed=True) == all(record.key is not None for record in content)


@given(records(0, gaps=False), st.sampled_from([0, 0, 0, 0, -1, 1]), st.data())
def test_the_verdict_is_that_of_the_slow_walk(
    content: tuple[Record, ...], more: int, draw: st.DataObject
) -> None:
    section = mutated(encoded(content), draw)
    count = max(1, len(content) + more)
    data = sealed(section, count)
    right = is_right(section, count)
    assert accepts(data) == right
    assert right or not is_chain(section, count)
    view = np.frombuffer(data, np.uint8)
    assert kernels.is_chain(view, HEADER_BYTES, view.size, count) is right
    assert kernels.is_chain(view[:-1], HEADER_BYTES, view.size - 1, count) is False
    ends = np.array([view.size, view.size])
    found = kernels.find_broken_chain(
        view, np.full(2, HEADER_BYTES), ends, np.array([count, count + 1])
    )
    assert found == int(right)
    assert right or not accepts(data, keyed=True)
    if right:
        assert decode_batches(data).num_rows == count


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_is_named_with_its_record(name: str, codec: int) -> None:
    section, count, record, reason = SPOILED[name]
    data = sealed(section, count, codec=codec)
    assert not is_right(section, count)
    with pytest.raises(
        InvalidRecord, match=f"batch 4, record {record} of {count}: .*{reason}"
    ) as refused:
        check_records(data, decode_header(data), index=4)
    assert refused.value.records == (record,)


@pytest.mark.parametrize("count", [2, 33, 300, 40_000])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_the_record_at_fault_is_found_in_batches_of_any_size(count: int, place: float) -> None:
    at = int(place * (count - 1))
    rows = [encode_record(Record(n, TIME_MS, None, b"x"), 0, TIME_MS) for n in range(count)]
    rows[at] = framed(b"\0\0" + varint(at) + b"\1\1\2\1\1")  # a header without a key
    data = sealed(b"".join(rows), count)
    with pytest.raises(InvalidRecord, match=f"^record {at} of {count}: its headers") as refused:
        check_records(data, decode_header(data))
    assert refused.value.records == (at,)


def test_records_without_a_key_are_named_where_each_must_have_one() -> None:
    data = sealed(GOOD[0] + KEYLESS + GOOD[2], 3, codec=3)
    check_records(data, decode_header(data))
    with pytest.raises(
        InvalidRecord, match=r"record 1 of 3: a compacted topic .* 1 of the batch"
    ) as refused:
        check_records(data, decode_header(data), keyed=True)
    assert refused.value.records == (1,)
    rows = [encode_record(Record(n, TIME_MS, None, b"x"), 0, TIME_MS) for n in range(30_000)]
    data = sealed(b"".join(rows), len(rows))
    with pytest.raises(InvalidRecord, match="30000 of the batch's records have none") as refused:
        check_records(data, decode_header(data), keyed=True)
    assert refused.value.records == tuple(range(REFUSED_RECORDS_NAMED_MAX))


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_may_have_lost_all_its_records(codec: int) -> None:
    empty = sealed(b"", 0, attributes=codec, last_offset_delta=4)
    check_records(empty, decode_header(empty))
    more = sealed(b"more", 0, attributes=codec, last_offset_delta=4)
    with pytest.raises(InvalidRecord, match="do not fill it"):
        check_records(more, decode_header(more))


def test_damaged_compression_is_an_invalid_record_too() -> None:
    header = decode_header(sealed(b"no gzip at all", 2, attributes=1))
    with pytest.raises(InvalidRecord, match=r"^2 records: gzip data"):
        check_records(sealed(b"no gzip at all", 2, attributes=1), header)


def test_what_is_opened_is_bounded() -> None:
    value = bytes(VALIDATED_BATCH_BYTES_MAX)
    bomb = sealed(encode_record(Record(0, TIME_MS, None, value), 0, TIME_MS), 1, codec=4)
    with pytest.raises(RecordTooLarge, match=str(VALIDATED_BATCH_BYTES_MAX)):
        check_records(bomb, decode_header(bomb))


def test_a_broker_loads_no_arrow_for_it() -> None:
    count = CHAIN_RECORDS_MAX + 1 if NATIVE else 1  # machine code needs no NumPy either
    content = tuple(Record(number, TIME_MS, None, b"x") for number in range(count))
    code = (
        "import sys\n"
        "from penstock.records import decode_header\n"
        "from penstock.records.columnar.validation import check_chain, check_records\n"
        "print([name for name in ('numpy', 'numba', 'pyarrow') if name in sys.modules])\n"
        f"batch = bytes.fromhex('{sealed(encoded(content), count).hex()}')\n"
        "check_chain(batch, decode_header(batch))\n"
        "print('numpy' in sys.modules)\n"
        "check_records(batch, decode_header(batch))\n"
        "print([name for name in ('numpy', 'numba', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    compiler = [] if NATIVE else ["numba"]
    assert done.stdout.splitlines() == ["[]", "False", str(["numpy", *compiler])]


@pytest.mark.parametrize("name", ["records", "records.columnar", "broker.server", "client"])
def test_kernels_are_not_loaded_before_records_are_opened(name: str) -> None:
    code = f"import sys, penstock.{name}; print('penstock.kernels.compiling' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
