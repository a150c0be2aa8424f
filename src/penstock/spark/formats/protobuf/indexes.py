"""The message indexes behind the schema id in the confluent framing.

    count  zigzag varint     0 stands for one index of 0
    index  zigzag varint     as many as counted

They say which message of the schema's file a value is of. Another message than ours is an error.

Source: the wire format of Confluent's Schema Registry serialisers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from penstock.spark.formats.lockstep.cursor import Lanes

LABEL: Final = "message indexes: "


def skip_indexes(lanes: Lanes, expected: tuple[int, ...]) -> None:
    """Move the lanes behind the indexes; those with other ones fail."""
    count = lanes.zigzag(LABEL)
    if expected == (0,):
        rows = np.flatnonzero(lanes.good & (count != 0))
    else:
        rows = np.arange(len(lanes))
    if not rows.size:
        return
    part = lanes.at(rows)
    wrong = f"{LABEL}the value is of another message"
    part.fail(part.good & (count[rows] != len(expected)), wrong)
    for index in expected:
        part.fail(part.good & (part.zigzag(LABEL) != index), wrong)
    lanes.put(rows, part)
