"""Rows that cannot be processed: skipped, or written to the dead-letter topic with their context.

A dead letter has the record's key, value and headers, and these headers as in Kafka Connect:

    __connect.errors.topic, .partition, .offset       record; partition and offset only for sinks
    __connect.errors.connector.name, .task.id
    __connect.errors.stage                             TRANSFORMATION, VALUE_CONVERTER, TASK_PUT
    __connect.errors.exception.class.name, .message
    __connect.errors.time                              time of the failure, ms since the epoch

Source: KIP-298; Kafka Connect's `DeadLetterQueueReporter`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from penstock.connect.errors import RowsRejected, Stage
from penstock.connect.plugins import HEADERS, KEY, OFFSET, PARTITION, VALUE, Records
from penstock.records.columnar.schema import HEADERS_TYPE

PREFIX: Final = "__connect.errors."
STAGES: Final[Mapping[Stage, str]] = {
    "transform": "TRANSFORMATION",
    "convert": "VALUE_CONVERTER",
    "write": "TASK_PUT",
}


def dead_letters(
    connector: str, raw: Records, rejected: RowsRejected, stage: Stage, now_ms: int
) -> Any:
    """Return the rejected rows of `raw` as a table with the columns key, value and headers.

    Args:
        raw: rows whose keys and values are bytes.
    """
    rows = raw.rows.take(pa.array(rejected.rows, pa.int64()))
    given = rows.column(HEADERS).to_pylist() if HEADERS in rows.column_names else None
    places = {
        name: rows.column(name).to_pylist()
        for name in (PARTITION, OFFSET)
        if OFFSET in rows.column_names
    }
    headers = []
    for index, reason in enumerate(rejected.reasons):
        context = {
            "topic": raw.topic,
            **{name: str(values[index]) for name, values in places.items()},
            "connector.name": connector,
            "task.id": "0",
            "stage": STAGES[stage],
            "exception.class.name": type(rejected).__name__,
            "exception.message": reason,
            "time": str(now_ms),
        }
        own = [(PREFIX + name, value.encode()) for name, value in context.items()]
        before = [(item["key"], item["value"]) for item in (given[index] or ())] if given else []
        headers.append([{"key": key, "value": value} for key, value in (*before, *own)])
    columns = {name: rows.column(name) for name in (KEY, VALUE) if name in rows.column_names}
    return pa.table({**columns, HEADERS: pa.array(headers, HEADERS_TYPE)})
