"""Was every row processed exactly once? Checked by (topic, partition, offset), not by counts.

Each row in a table still has the place in the log that it came from. The places in the tables
for flights, weather and dead letters together must be the places in the log: each once, none
missing, none that the log does not have. The other claims follow the same rows further on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from examples.flights import data
from penstock.client import Client

TABLES: Final = ("flights", "weather", "dead_letters")
TOPICS: Final = (data.FLIGHTS, data.WEATHER)
PARTITION_SHIFT: Final = 40
TOPIC_SHIFT: Final = 56


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sentence, and whether it is true."""

    text: str
    holds: bool


def claims(folder: Path, client: Client, flights: pa.Table) -> list[Claim]:
    """Every claim of the demo, tested against the log and the tables as they are on disk."""
    kept = {name: rows(folder, name, ["topic", "partition", "offset"]) for name in TABLES}
    letters = rows(folder, "dead_letters", ["source", "reason"])
    logged = _log_places(client)
    stored = np.concatenate([_places(table) for table in kept.values()])
    distinct = np.unique(stored)
    counts = {name: table.num_rows for name, table in kept.items()}
    topic_keys = client.read_arrow(data.DEAD_LETTERS, columns=("key",))["key"].cast(pa.string())
    delays = rows(folder, "delays", ["flights"])
    windows = pc.sum(delays["flights"]).as_py() or 0
    return [
        Claim(
            text=f"{len(logged):,} rows in the log = {counts['flights']:,} flights "
            f"+ {counts['weather']:,} weather + {counts['dead_letters']:,} dead letters",
            holds=len(logged) == sum(counts.values()),
        ),
        Claim(
            text=f"no row twice: {len(distinct):,} places for {len(stored):,} rows",
            holds=len(distinct) == len(stored),
        ),
        Claim(
            text="no row missing, none invented: the places are those of the log, every one",
            holds=bool(np.array_equal(distinct, np.sort(logged))),
        ),
        Claim(
            text=f"{len(topic_keys):,} dead letters in the topic, each once, as in the table",
            holds=len(topic_keys) == letters.num_rows
            and set(topic_keys.to_pylist()) == set(letters["source"].to_pylist()),
        ),
        Claim(
            text=f"{windows:,} flights in {delays.num_rows:,} windows = flights in the table",
            holds=windows == counts["flights"],
        ),
        _content(folder, flights),
    ]


def rows(folder: Path, table: str, columns: list[str]) -> pa.Table:
    """Columns of one of the demo's tables."""
    return DeltaTable(str(folder / "tables" / table)).to_pyarrow_table(columns=columns)


def _content(folder: Path, flights: pa.Table) -> Claim:
    # Miles survive every step unchanged, so their sum tells mixed-up rows from right ones.
    before = pc.sum(flights["distance"]).as_py()
    kept = pc.sum(rows(folder, "flights", ["distance"])["distance"]).as_py()
    letters = rows(folder, "dead_letters", ["topic", "value"])
    texts = letters.filter(pc.equal(letters["topic"], data.FLIGHTS))["value"]
    found = pc.extract_regex(texts, r'"distance":(?P<miles>\d+)')
    dead = pc.sum(pc.struct_field(found, "miles").cast(pa.int64())).as_py() or 0
    return Claim(
        text=f"{before:,} miles in the source = {kept:,} in the table + {dead:,} dead-lettered",
        holds=before == kept + dead,
    )


def _log_places(client: Client) -> np.ndarray:
    runs = []
    for index, topic in enumerate(TOPICS):
        for partition, end in client.list_offsets(topic, "latest").items():
            runs.append(_packed(index, partition, np.arange(end, dtype=np.int64)))
    return np.concatenate(runs)


def _places(table: pa.Table) -> np.ndarray:
    topic = pc.index_in(table["topic"], value_set=pa.array(TOPICS)).to_numpy()
    return _packed(
        topic.astype(np.int64),
        table["partition"].to_numpy().astype(np.int64),
        table["offset"].to_numpy(),
    )


def _packed(topic: np.ndarray | int, partition: np.ndarray | int, offset: np.ndarray) -> np.ndarray:
    # One number for one place in the log.
    return np.asarray(
        (np.int64(topic) << TOPIC_SHIFT) | (np.int64(partition) << PARTITION_SHIFT) | offset
    )
