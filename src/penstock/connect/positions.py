"""Positions of a source: where its next run continues, as records of a compacted topic.

The topic `penstock-connect.<name>.positions` has one partition. A record's key is the name of a
position, its value the position as JSON; a null value removes it. Positions are written in the
transaction that writes the rows, so a position and its rows are visible together or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from penstock.base.errors import CorruptError
from penstock.client import Client
from penstock.records.extents import READ_COMMITTED

CONFIGS: Final = {
    "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "segment.bytes": str(16 << 20),
}  # fmt: skip
"""The segment that is written is not compacted, and is read whole when a connector starts."""
POSITIONS_MAX: Final = 1_000_000
"""Most positions of a source. Their topic has more records, because compaction lags behind."""


def positions_topic(connector: str) -> str:
    return f"penstock-connect.{connector}.positions"


def load(client: Client, connector: str, replication_factor: int) -> dict[str, Any]:
    """Return the committed positions; create the topic if it does not exist.

    Call this after the producer has fenced earlier runs, so that no open transaction of theirs
    remains.

    Raises:
        CorruptError: a record is not a position, or there are more than `POSITIONS_MAX` positions.
        PenstockError: the brokers do not respond, or reject the request.
    """
    topic = positions_topic(connector)
    client.create_topic(topic, 1, CONFIGS, replication_factor=replication_factor, exist_ok=True)
    found: dict[str, Any] = {}
    read(client, connector, found)
    return found


def read(client: Client, connector: str, found: dict[str, Any], start: int = 0) -> int:
    """Apply the committed positions from an offset on to `found`; return the offset after them.

    If the topic was created again, it is read from its beginning.

    Raises:
        CorruptError: as in `load`.
        PenstockError: the brokers do not respond, or reject the request.
    """
    topic = positions_topic(connector)
    (first,) = client.list_offsets(topic, "earliest").values()
    (end,) = client.list_offsets(topic, isolation=READ_COMMITTED).values()
    start = first if start > end else max(first, start)
    for rows in client.iter_arrow(
        topic, columns=("key", "value"), start={0: start}, end={0: end}, isolation="read_committed"
    ):
        if rows["key"].null_count:
            raise CorruptError(f"topic {topic}: a record without a key is not a position")
        keys = rows["key"].dictionary_encode()
        last = np.zeros(len(keys.dictionary), np.int64)
        last[keys.indices] = np.arange(len(keys))
        newest = rows.take(last)
        for key, value in zip(newest["key"].to_pylist(), newest["value"].to_pylist(), strict=True):
            try:
                name = key.decode()
                if value is None:
                    found.pop(name, None)
                else:
                    found[name] = msgspec.json.decode(value)
            except ValueError as error:
                raise CorruptError(f"topic {topic}: record {key!r} is not a position") from error
        if len(found) > POSITIONS_MAX:
            raise CorruptError(f"topic {topic} has more than {POSITIONS_MAX:,} positions")
    return end


def existing(client: Client, connector: str) -> dict[str, Any]:
    """Return the committed positions; empty if their topic does not exist."""
    found: dict[str, Any] = {}
    if positions_topic(connector) in {topic.name for topic in client.list_topics()}:
        read(client, connector, found)
    return found


def forget(client: Client, connector: str, names: Iterable[str] = ()) -> list[str]:
    """Remove positions; the connector must not run. Return their names.

    Args:
        names: names of positions, or the tables that they belong to; empty means all.
    """
    wanted = {key for name in names for key in (name, f"table/{name}")}
    found = [name for name in load(client, connector, -1) if not wanted or name in wanted]
    client.write_arrow(positions_topic(connector), rows_of(dict.fromkeys(found)))
    return found


def rows_of(positions: Mapping[str, Any]) -> Any:
    """Return positions as rows of their topic."""
    values = [None if item is None else msgspec.json.encode(item) for item in positions.values()]
    keys = [name.encode() for name in positions]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
