"""Export files: what is written is read, and damage anywhere is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.apps.schema.files import (
    UnusableExport,
    decode,
    encode,
    read_export,
    write_export,
)
from penstock.apps.schema.snapshot import Snapshot
from tests.apps.schema.conftest import shop, snapshot, version

URL = "http://old:8081"


def test_everything_is_read_as_it_was_written(tmp_path: Path) -> None:
    file = write_export(tmp_path, shop(), URL)
    assert file == tmp_path / "schemas.jsonl"
    header, found = read_export(tmp_path)
    assert found == shop()
    assert (header.source, header.versions, header.ids, header.contexts) == (URL, 6, 4, 2)
    assert read_export(write_export(tmp_path / "one.jsonl", Snapshot(), URL))[1] == Snapshot()


def test_lines_are_sorted_so_that_equal_registries_have_equal_files() -> None:
    versions = list(shop().versions.values())
    assert encode(snapshot(*versions), URL) == encode(snapshot(*reversed(versions)), URL)


@given(
    subject=st.text(min_size=1, max_size=20).filter(lambda text: text.isprintable()),
    text=st.text(max_size=50),
    schema_id=st.integers(0, 2**31 - 1),
)
def test_any_text_survives(subject: str, text: str, schema_id: int) -> None:
    if subject.startswith(":"):
        subject = f"a{subject}"
    try:
        (subject + text).encode()
    except UnicodeEncodeError:
        return
    written = snapshot(version(subject, 1, schema_id, text))
    assert decode(encode(written, URL), "file")[1] == written


def test_a_file_that_is_cut_off_anywhere_is_refused() -> None:
    data = encode(snapshot(version("a", 1, 1), version("b", 1, 1)), URL)
    for size in range(len(data) - 1):
        with pytest.raises(UnusableExport):
            decode(data[:size], "file")
    assert decode(data[:-1], "file")[1].versions  # only the last line end is missing


def test_a_changed_byte_is_found() -> None:
    data = encode(snapshot(version("a", 1, 1)), URL)
    for place in range(len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 0x01
        with pytest.raises(UnusableExport):
            decode(bytes(changed), "file")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is not an export"),
        (b"{}\n", "line 1"),
        (b'{"kind":"mode","subject":"","mode":"IMPORT"}\n', "its first line is no header"),
        (encode(Snapshot(), URL).replace(b'_version":1', b'_version":2'), "format version 2"),
        (encode(Snapshot(), URL) + b"\n", "line 3"),
        (encode(Snapshot(), URL) * 2, "is damaged"),
    ],
)
def test_other_files_are_refused(data: bytes, expected: str) -> None:
    with pytest.raises(UnusableExport, match=expected):
        decode(data, "file")
