"""Header before a value that a schema registry's serialisers write.

    magic      uint8          0
    schema id  int32          big endian
    count      zigzag varint  Protobuf only: of message indexes; 0 stands for one index of 0
    index      zigzag varint  as many as counted

The id is ignored: values are read with the reader's own schema. The indexes name the message of the
schema's file; another message than the reader's is an error.

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
"""Labels of the first positions of every format: the whole value, and the indexes in its header."""
WORDS: Final = (
    "", "ends too early", "a number of more than 64 bits", TOO_SHORT, NO_MAGIC,
    "the value is of another message",
)  # fmt: skip
"""The first reasons of every format, by the numbers that kernels give them."""


def skip_header(values: Values, indexes: tuple[int, ...] = ()) -> None:
    """Move the values behind their headers; those without them, or with other indexes, fail."""
    from penstock.kernels.frames import skip_frames

    skip_frames(
        values.data, values.starts, values.ends, values.problems, np.array(indexes, np.int64),
        HEADER_BYTES, REASONS,
    )  # fmt: skip
