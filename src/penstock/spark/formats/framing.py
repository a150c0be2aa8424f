"""The five bytes in front of a value that a schema registry's serialisers write, by columns.

    magic      uint8   0
    schema id  int32   big endian

The id is not looked up: the pipeline's own schema is what a value is read with. Protobuf has
message indexes after the id; `protobuf/indexes.py` reads those.

Source: the wire format of Confluent's Schema Registry serialisers.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (Spark's own convention)

from penstock.spark.formats.value_format import Framing

MAGIC: Final = b"\x00"
HEADER_BYTES: Final = 5
TOO_SHORT: Final = f"shorter than the {HEADER_BYTES} bytes of the confluent framing"
NO_MAGIC: Final = "does not start with the magic byte 0 of the confluent framing"


def payload(framing: Framing, value: Column) -> tuple[Column, Column]:
    """The bytes behind the frame, and what is wrong with the frame (or null)."""
    if framing == "none":
        return value, F.lit(None).cast("string")
    wrong = F.when(F.octet_length(value) < HEADER_BYTES, F.lit(TOO_SHORT)).when(
        F.substring(value, 1, 1) != F.lit(MAGIC), F.lit(NO_MAGIC)
    )
    return F.substring(value, HEADER_BYTES + 1, 2**31 - 1 - HEADER_BYTES), wrong
