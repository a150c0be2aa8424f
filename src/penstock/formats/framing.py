"""The bytes in front of a value that a schema registry's serialisers write.

    magic      uint8          0
    schema id  int32          big endian
    count      zigzag varint  Protobuf only: of message indexes; 0 stands for one index of 0
    index      zigzag varint  as many as counted

The id is not looked up: the reader's own schema is what a value is read with. The indexes say which
message of the schema's file a value is of; another message than the reader's is an error.

Source: the wire format of Confluent's Schema Registry serialisers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.formats.vectorised.cursor import Cursors

MAGIC: Final = b"\x00"
HEADER_BYTES: Final = 5
TOO_SHORT: Final = f"shorter than the {HEADER_BYTES} bytes of the confluent framing"
NO_MAGIC: Final = "does not start with the magic byte 0 of the confluent framing"
_INDEXES: Final = "message indexes: "


def skip_header(cursors: Cursors) -> None:
    """Move the cursors behind magic and schema id; those without them fail."""
    cursors.fail(cursors.good & (cursors.end - cursors.position < HEADER_BYTES), TOO_SHORT)
    first = cursors.octets.data[cursors.position]
    cursors.fail(cursors.good & (first != MAGIC[0]), NO_MAGIC)
    cursors.advance(np.where(cursors.good, HEADER_BYTES, 0), "")


def skip_indexes(cursors: Cursors, expected: tuple[int, ...]) -> None:
    """Move the cursors behind the indexes; those with other ones fail."""
    count = cursors.zigzag(_INDEXES)
    if expected == (0,):
        rows = np.flatnonzero(cursors.good & (count != 0))
    else:
        rows = np.arange(len(cursors))
    if not rows.size:
        return
    part = cursors.at(rows)
    wrong = f"{_INDEXES}the value is of another message"
    part.fail(part.good & (count[rows] != len(expected)), wrong)
    for index in expected:
        part.fail(part.good & (part.zigzag(_INDEXES) != index), wrong)
    cursors.put(rows, part)
