"""Access to headers of many records in columns.

The headers of each record are a list. All lists are flattened once, filtered by name, and reduced
to one value per record. So reading a header costs a few Arrow calls for any number of records. If a
record has a header repeatedly, the last value counts. If the header is missing, the value is null.

Layout of a record (`docs/guides/outbox.md`): the key is the partition id. The header
`penstock-outbox` is `pointer` or `inline`. Inline records have the headers `batch-id`, `codec`,
`event-count` and `crc32c`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def header_column(headers: Any, name: str) -> Any:
    """Return the value of one header for every record, as a binary array with nulls.

    `headers` is a list<struct<key, value>> array or chunked array.
    """
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    count = len(headers)
    flat = pc.list_flatten(headers)
    if not len(flat):
        return pa.nulls(count, pa.binary())
    matches = np.flatnonzero(
        pc.equal(pc.struct_field(flat, 0), name).fill_null(False).to_numpy(zero_copy_only=False)
    )
    parents = pc.list_parent_indices(headers).to_numpy(zero_copy_only=False)
    place = np.zeros(count, np.int64)
    found = np.zeros(count, bool)
    place[parents[matches]] = matches
    found[parents[matches]] = True
    return pc.struct_field(flat, 1).take(pa.array(place, mask=~found)).cast(pa.binary())


def where(mask: Any) -> Any:
    return np.flatnonzero(mask.fill_null(False).to_numpy(zero_copy_only=False))
