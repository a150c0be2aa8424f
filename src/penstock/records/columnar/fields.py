"""The fields of many records by column: what follows a record's length, up to its headers.

Every record must end exactly where its length says. Since positions only grow from field to
field, that proves all of them to lie inside their record.

Source: Kafka's `DefaultRecord`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.records.columnar.arrays import Bytes, Ints
from penstock.records.columnar.varints import read_ints, read_longs
from penstock.records.errors import CorruptBatch


class Fields(NamedTuple):
    """One element for each record; a length of -1 is a null, positions are bytes of the data."""

    timestamp_delta: Ints
    offset_delta: Ints
    key_at: Ints
    key_length: Ints
    value_at: Ints
    value_length: Ints
    headers_at: Ints
    header_count: Ints


def read_fields(data: Bytes, bodies: Ints, ends: Ints) -> Fields:
    """Read the fields of the records in `data[bodies[i]:ends[i]]`; headers are only counted.

    Raises:
        CorruptBatch: a record does not end where it says, a length is below -1, or a varint has
            too many bits.
    """
    # The first byte of a record is its own attributes, which mean nothing yet.
    timestamp_delta, at = read_longs(data, bodies + 1)
    offset_delta, at = read_ints(data, at)
    key_length, key_at = read_ints(data, at)
    value_length, value_at = read_ints(data, key_at + np.maximum(key_length, 0))
    header_count, headers_at = read_ints(data, value_at + np.maximum(value_length, 0))
    if (
        min(key_length.min(), value_length.min()) < -1
        or header_count.min() < 0
        or (headers_at > ends).any()
        or ((headers_at != ends) & (header_count == 0)).any()
    ):
        raise CorruptBatch("a record does not end where its length says")
    return Fields(
        timestamp_delta,
        offset_delta,
        key_at,
        key_length,
        value_at,
        value_length,
        headers_at,
        header_count,
    )
