"""Apache Kafka's Java client as the oracle of our readers: frames of codecs, right and wrong.

What it reads, `decode_batches` reads with the same result; what a broker stores with
`record.validation = full`, it reads.
"""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records.framings import EXAMPLES, framings
from tests.records.nonsense import sealed
from tests.records.test_framings import CODECS, TIME_MS, section, sections, values

from compat.conftest import missing
from compat.parts import PartMissing, java_program
from penstock.base.errors import PenstockError
from penstock.records import compress, decode_header
from penstock.records.columnar import decode_batches
from penstock.records.columnar.validation import check_records


def drawn() -> list[tuple[bytes, list[bytes]]]:
    """An undamaged batch of each codec, then one of each example of a run, with their values."""
    whole = values(3, 40)
    batches = [
        (sealed(compress(codec, section(3, 40)), 3, attributes=codec), whole) for codec in CODECS
    ]

    @settings(max_examples=EXAMPLES, deadline=None)
    @given(st.sampled_from(CODECS), sections(), st.data())
    def draw_batch(codec: int, shape: tuple[int, int], draw: st.DataObject) -> None:
        count, size = shape
        packed = draw.draw(framings(codec, section(count, size)))
        batches.append((sealed(packed, count, attributes=codec), values(count, size)))

    draw_batch()
    return batches


def read_by_java(batches: list[bytes]) -> list[Any]:
    """Return what Java's client reads of each batch: its records, or the text of its error."""
    try:
        classes = java_program("BatchReader")
    except PartMissing as error:
        missing(error)
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", classes, "BatchReader"]
    sent = b"".join(struct.pack(">i", len(batch)) + batch for batch in batches)
    done = subprocess.run(command, input=sent, capture_output=True, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(batches)
    return answers


def read_by_us(batch: bytes) -> list[list[Any]] | str:
    columns = ("offset", "timestamp", "key", "value")
    try:
        rows = decode_batches(batch, columns=columns).to_pylist()
    except PenstockError as error:
        return str(error)
    return [
        [row["offset"], row["timestamp"], _text(row["key"]), _text(row["value"])] for row in rows
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def stored(batch: bytes) -> bool:
    try:
        check_records(batch, decode_header(batch))
    except PenstockError:
        return False
    return True


def test_javas_client_reads_what_is_stored_and_we_read_what_it_reads() -> None:
    batches = drawn()
    answers = read_by_java([batch for batch, _ in batches])
    for (batch, sent), theirs in zip(batches, answers, strict=True):
        ours = read_by_us(batch)
        if isinstance(theirs, list):
            # Of a changed record in a compressed batch its reader compares no length: ours does.
            rows = [
                [offset, TIME_MS, "aw==", base64.b64encode(value).decode()]
                for offset, value in enumerate(sent)
            ]
            changed = theirs != rows
            if not (changed and isinstance(ours, str) and ", record " in ours):
                assert ours == theirs, batch.hex()
        if stored(batch):
            assert isinstance(theirs, list), (theirs, batch.hex())
    assert all(isinstance(theirs, list) for theirs in answers[: len(CODECS)])
    assert sum(isinstance(theirs, list) for theirs in answers) > len(answers) // 10
