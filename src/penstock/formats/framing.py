"""Header that a schema registry's serialisers write before a value.

    magic      uint8          0
    schema id  int32          big endian
    count      zigzag varint  Protobuf only: number of message indexes; 0 means the one index 0
    index      zigzag varint  one for each of `count`

The schema id is ignored, because values are read with the reader's own schema. The indexes identify
a message in the schema's file. It is an error if this is not the reader's message.

Source: the wire format of Confluent's Schema Registry serialisers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.formats.values import REASONS, Values

MAGIC: Final = b"\x00"
HEADER_BYTES: Final = 5
TOO_SHORT: Final = f"shorter than the {HEADER_BYTES} bytes of the confluent framing"
NO_MAGIC: Final = "does not start with the magic byte 0 of the confluent framing"
PLACES: Final = ("", "message indexes: ")
"""Labels of places 0 and 1 in errors of every format: the whole value, and its message indexes."""
WORDS: Final = (
    "", "ends too early", "a number of more than 64 bits", TOO_SHORT, NO_MAGIC,
    "the value is of another message",
)  # fmt: skip
"""Texts of the error reasons that all formats share, by the numbers of the kernels."""


def skip_header(values: Values, indexes: tuple[int, ...] = ()) -> None:
    """Move the start of each value to after its header.

    A value without a header, or with other message indexes, gets a problem.
    """
    from penstock.kernels.frames import skip_frames

    skip_frames(
        values.data, values.starts, values.ends, values.problems, np.array(indexes, np.int64),
        HEADER_BYTES, REASONS,
    )  # fmt: skip
