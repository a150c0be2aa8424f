"""Every persisted format: whole, cut at every position, and damaged at every byte."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.crc import crc32c
from penstock.storage.files.checkpoint import (
    RecoveryPoint,
    decode_checkpoint,
    encode_checkpoint,
    encode_recovery_point,
)
from penstock.storage.files.epochs import decode_epochs, encode_epochs
from penstock.storage.files.errors import CorruptFile
from penstock.storage.files.index import SparseIndex
from penstock.storage.files.journal import (
    ROW,
    decode_head,
    decode_key,
    decode_rows,
    encode_entry,
    encode_key,
    is_whole,
    padded,
)
from penstock.storage.files.producers import (
    BATCHES_VERSION,
    SnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from penstock.storage.files.values import (
    Standing,
    decode_partition_metadata,
    encode_partition_metadata,
)

ID = UUID("12345678-1234-5678-1234-567812345678")


def test_epochs_text_is_kafkas() -> None:
    assert encode_epochs([(0, 0), (3, 117)]) == b"0\n2\n0 0\n3 117\n"
    assert decode_epochs(b"0\n2\n0 0\n3 117\n") == [(0, 0), (3, 117)]
    assert decode_epochs(encode_epochs([])) == []


@given(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=6))
def test_epochs_round_trip(entries: list[tuple[int, int]]) -> None:
    epochs = sorted({epoch for epoch, _ in entries})
    starts = sorted(start for _, start in entries)
    rising = list(zip(epochs, starts, strict=False))
    assert decode_epochs(encode_epochs(rising)) == rising


def test_cut_epochs_are_refused_or_shorter_numbers() -> None:
    data = encode_epochs([(0, 0), (3, 117)])
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode_epochs(data[:size])


@pytest.mark.parametrize(
    "data",
    [
        b"1\n0\n", b"0\n1\n", b"0\n1\n0 0\n1 1\n", b"0\n1\na b\n", b"0\n2\n3 0\n1 5\n",
        b"0\n2\n1 5\n2 4\n", b"\xff\n", b"0\n-1\n", b"0\n1\n99999999999 0\n",
    ],
)  # fmt: skip
def test_wrong_epochs_are_refused(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_epochs(data)


def test_partition_metadata() -> None:
    data = encode_partition_metadata(ID)
    assert data == b"version: 0\ntopic_id: EjRWeBI0VngSNFZ4EjRWeA"
    assert decode_partition_metadata(data) == ID
    assert decode_partition_metadata(data + b"\n") == ID
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode_partition_metadata(data[:size])


ENTRIES = [
    SnapshotEntry(4000, 0, 12, 99, 3, 1700000000000),
    SnapshotEntry(2**63 - 1, 32767, 2**31 - 1, 2**62, 0, -1, 5, 17),
]


@pytest.mark.parametrize("version", [1, BATCHES_VERSION])
def test_snapshot(version: int) -> None:
    data = encode_snapshot(ENTRIES, version)
    assert len(data) == 10 + 46 * 2
    assert decode_snapshot(data, version) == ENTRIES
    assert decode_snapshot(encode_snapshot([], version), version) == []
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode_snapshot(data[:size], version)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(CorruptFile):
            decode_snapshot(bytes(damaged), version)
    with pytest.raises(CorruptFile):
        decode_snapshot(data + b"\0", version)


def test_checkpoint() -> None:
    mark = RecoveryPoint(5, 100, 64, 4096, 8192, 3, 1)
    rows = [encode_recovery_point(encode_key(ID, "orders", 3), mark), encode_recovery_point(
        encode_key(ID, "ö", 2**31 - 1), mark._replace(flags=0))]  # fmt: skip
    data = encode_checkpoint(42, rows, clean=True, journaled=False)
    decoded = decode_checkpoint(data)
    assert decoded.sequence == 42
    assert decoded.clean
    assert decoded.points["orders", 3] == (ID, mark)
    assert decoded.points["ö", 2**31 - 1][1].flags == 0
    assert not decode_checkpoint(encode_checkpoint(1, [], clean=False, journaled=True)).clean
    kept = mark.with_standing(Standing(7, 5, lost=True))
    assert (kept.promised, kept.limbo, kept.flags) == (7, 5, 3)
    again = decode_checkpoint(
        encode_checkpoint(
            1, [encode_recovery_point(encode_key(ID, "t", 0), kept)], clean=False, journaled=True
        )
    ).points["t", 0][1]
    assert (again, again.standing) == (kept, Standing(7, 5, lost=True))
    assert again.with_standing(Standing()) == mark
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode_checkpoint(data[:size])
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x01
        with pytest.raises(CorruptFile):
            decode_checkpoint(bytes(damaged))


def test_a_checkpoint_of_the_version_before_is_read() -> None:
    row = encode_key(ID, "orders", 3) + struct.pack(">qqqqqiI", 5, 100, 64, 4096, 8192, 3, 1)
    body = struct.pack(">QII", 42, 1, 1) + row
    data = b"PCP1" + crc32c(body).to_bytes(4, "big") + body
    decoded = decode_checkpoint(data)
    assert (decoded.sequence, decoded.clean) == (42, True)
    assert decoded.points["orders", 3] == (ID, RecoveryPoint(5, 100, 64, 4096, 8192, 3, 1, -1, -1))
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode_checkpoint(data[:size])


def test_a_cut_limits_a_recovery_point() -> None:
    point = RecoveryPoint(5, 100, 64, 4096, 8192, 3, 1)
    assert point.cut(100, 64, 4096) is point
    assert point.cut(70, 64, 99) == point._replace(recovery_offset=70, position=99)


def entry() -> tuple[bytes, int]:
    payloads: list[bytes | bytearray | memoryview] = [
        b"first batch",
        bytearray(b"second"),
        memoryview(b""),
    ]
    rows: list[bytes] = []
    for number, payload in enumerate(payloads):
        rows += [ROW.pack(0, number * 10, number, number + 1, len(payload))]
        rows += [encode_key(ID, "orders", number)]
    head, size, checksum = encode_entry(
        rows,
        payloads,
        sum(map(len, payloads)),
        item_count=3,
        sequence=9,
        generation=2,
        durable_sequence=8,
        previous_checksum=77,
    )
    data = head + b"".join(payloads)
    assert len(data) == size
    return data, checksum


def test_journal_entry() -> None:
    data, checksum = entry()
    view = memoryview(b"ab" + data + b"rest")
    head = decode_head(view, 2)
    assert head is not None
    assert (head.sequence, head.generation, head.durable_sequence) == (9, 2, 8)
    assert (head.previous_checksum, head.checksum) == (77, checksum)
    assert is_whole(view, head, 2)
    rows = decode_rows(data, head)
    assert [data[row.data_at :][: row.size_bytes] for row in rows] == [
        b"first batch", b"second", b"",
    ]  # fmt: skip
    assert [decode_key(row.key) for row in rows] == [
        (ID, "orders", 0), (ID, "orders", 1), (ID, "orders", 2),
    ]  # fmt: skip
    assert [row.is_cut for row in rows] == [False, False, True]
    assert not any(row.is_standing for row in rows)
    standing = rows[2]._replace(segment_base=-1)
    assert (standing.is_standing, standing.is_cut) == (True, False)
    assert rows[1].position == 10
    assert (rows[1].base_offset, rows[1].next_offset) == (1, 2)


def test_journal_entry_cut_or_damaged_anywhere_is_none() -> None:
    data, _ = entry()
    for size in range(len(data)):
        view = memoryview(data[:size])
        head = decode_head(view)
        assert head is None or not is_whole(view, head)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        view = memoryview(damaged)
        head = decode_head(view)
        assert head is None or not is_whole(view, head)


def test_padding() -> None:
    assert [padded(size) for size in (1, 4096, 4097)] == [4096, 4096, 8192]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(0, 4000))
def test_index_lookups_match_a_plain_search(steps: list[int], wanted: int) -> None:
    index = SparseIndex(100)
    plain: list[tuple[int, int, int]] = []
    offset, position, time = 100, 0, 1000
    for number, step in enumerate(steps):
        offset += step
        position += step * 7
        time += step if number % 3 else -step
        index.add_offset(offset, position)
        before = index.last_timestamp
        index.add_time(time, offset)
        plain.append((offset, position, max(time, before)))
    assert index.doubt(position + 1) is None
    assert index.by_offset(wanted).position == max(
        [place for known, place, _ in plain if known <= wanted], default=0
    )
    assert index.by_position(wanted).position == max(
        [place for _, place, _ in plain if place <= wanted], default=0
    )
    early = [known for known, _, newest in plain if newest < wanted]
    assert index.by_time(wanted).last_offset <= max(early, default=100)
    kept = [(known, place) for known, place, _ in plain if place < wanted]
    index.cut(2**31, wanted)
    assert len(index.offsets) == 8 * len(kept)


def test_a_doubtful_index_is_noticed() -> None:
    index = SparseIndex(0)
    index.add_offset(5, 100)
    index.add_time(1000, 5)
    assert index.doubt(101) is None
    assert index.doubt(100)
    assert SparseIndex(0, bytes(index.offsets) * 2).doubt(1000)
    assert SparseIndex(0, bytes(index.offsets)[:-1]).doubt(1000)
    assert SparseIndex(0, b"", bytes(index.times) * 2).doubt(1000)
    assert SparseIndex(0, b"", bytes(index.times)[:-1]).doubt(1000)


def test_an_entry_that_a_crash_has_torn_is_not_taken_for_an_older_one() -> None:
    """Return the states after an unsynced write, in which either half of an entry may exist."""
    for offset, position in ((9, 0x100), (2, 0x118)):
        index = SparseIndex(42)
        index.add_offset(43, 90)
        index.add_offset(42 + offset, position)
        assert index.doubt(400) is None
        index.cut(51, 0x118)
        assert len(index.offsets) == 8
