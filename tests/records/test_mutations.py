"""Mutated bytes: the columns that a slow, obvious reader finds, or an error, never a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.records import CorruptBatch, RecordTooLarge, UnsupportedCodec
from penstock.records.columnar import decode_batches
from tests.records import reference
from tests.records.reference import Batch, Record, Wrong
from tests.records.strategies import batches

UNPACKED_MAX = 1 << 22
REFUSALS = (CorruptBatch, RecordTooLarge, UnsupportedCodec)
ROOT = Path(__file__).parents[2]


def mutated(data: bytes, draw: st.DataObject) -> bytes:
    """Change, add or remove one to four bytes."""
    result = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, max(len(result) - 1, 0)))
        kind = draw.draw(st.sampled_from(["change", "change", "nudge", "insert", "delete", "cut"]))
        if kind == "insert":
            result[at:at] = draw.draw(st.binary(min_size=1, max_size=3))
        elif kind == "cut":
            del result[max(at, len(result) - 80) :]
        elif kind == "delete":
            del result[at : at + draw.draw(st.integers(1, 3))]
        elif at < len(result):
            step = draw.draw(st.sampled_from([-2, -1, 1, 2, 64, 128]))
            result[at] = (result[at] + step) % 256 if kind == "nudge" else draw.draw(BYTES)
    return bytes(result)


BYTES = st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]) | st.integers(0, 255)


def rows(decoded: Any) -> list[Record]:
    decoded.validate(full=True)
    columns = [column.to_pylist() for column in decoded.columns]
    return [
        Record(
            offset, time, key, value, tuple((header["key"], header["value"]) for header in headers)
        )
        for offset, time, key, value, headers in zip(*columns, strict=True)
    ]


def assert_as_the_reference(data: bytes, *, control: bool) -> None:
    """Copied and viewed columns are those of the reference, or all of them are refused."""
    options: dict[str, Any] = {
        "check_crc": False,
        "include_control": control,
        "max_decompressed_bytes": UNPACKED_MAX,
    }
    try:
        expected = reference.read(data, control=control, unpacked_max=UNPACKED_MAX)
    except Wrong:
        for views in (False, True):
            with pytest.raises(REFUSALS):
                decode_batches(data, views=views, **options)
        return
    for views in (False, True):
        assert rows(decode_batches(data, views=views, **options)) == expected


@settings(max_examples=100, deadline=None)
@given(drawn=batches(), control=st.booleans(), draw=st.data())
def test_mutated_batches(drawn: list[Batch], control: bool, draw: st.DataObject) -> None:
    data = b"".join(reference.encode(batch) for batch in drawn)
    assert_as_the_reference(mutated(data, draw), control=control)


@settings(max_examples=100, deadline=None)
@given(count=st.integers(1, 12), section=st.binary(max_size=120), draw=st.data())
def test_any_bytes_behind_a_header(count: int, section: bytes, draw: st.DataObject) -> None:
    if draw.draw(st.booleans()):
        record = Record(0, 1, b"k", b"v" * 20, (("name", b"value"), ("none", None)))
        body = b"".join(reference.encode_record(record, 0, 1) for _ in range(count))
        section = mutated(body, draw)
    header = (0, 49 + len(section), -1, 2, 0, 0, 2**31 - 1, 1, 1, -1, -1, -1, count)
    assert_as_the_reference(reference.HEADER.pack(*header) + section, control=False)


def test_nothing_is_read_or_written_outside() -> None:
    """The same where every index of an array is checked."""
    code = (
        "from tests.records import test_mutations as mutations\n"
        "from penstock.kernels import sources\n"
        "assert sources.CHECKED\n"
        "mutations.test_mutated_batches()\n"
        "mutations.test_any_bytes_behind_a_header()"
    )
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PENSTOCK_KERNELS_CHECKED": "1", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
